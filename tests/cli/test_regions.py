"""``nvfp4 regions``: saved records and IKET's traces, what cannot be asked, and a kernel that runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.cli.regions.page import document
from pytest_nvfp4.device.execute import execute
from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.device.remote.base import PythonProgram
from pytest_nvfp4.device.worker.regions import Request
from pytest_nvfp4.problem import Group, Problem
from pytest_nvfp4.profiler.exchange import as_data
from pytest_nvfp4.profiler.iket import timeline_of
from pytest_nvfp4.profiler.records import Kind
from pytest_nvfp4.profiler.spans import Span, Timeline
from pytest_nvfp4.report.render import OutputFormat, render
from tests.cli.helpers import Result
from tests.profiler.buffers import buffer, decoded
from tests.profiler.programs import FALLBACK, KERNEL

Cli = Callable[..., Result]
IKET_RANGE = {"warpLocIdxs": [0], "rangeNameIdx": 1, "startTs": 1000, "endTs": 1250}
IKET = {
    "stringTable": ["kernel", "load", "mma"],
    "locationTable": [{"ctaId": [0, 0, 0], "warpId": 4}, {"ctaId": [1, 0, 0], "warpId": 5, "smId": 7}],
    "launches": [
        {
            "kernelName": "gemm",
            "ranges": [
                IKET_RANGE,
                {"warpLocIdxs": [0, 1], "rangeNameIdx": 2, "startTs": 1100, "endTs": 2000},
            ],
        }
    ],
}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    words = buffer({0: (0, 0.0, [(100.0, Kind.BEGIN, 0), (5_100.0, Kind.END, 0)])}, launches=2)
    file = tmp_path / "records.json"
    file.write_text(json.dumps(as_data([decoded(words)])))
    return file


def saved(folder: Path, values: object, name: str = "iket.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(values))
    return file


def test_saved_records_are_shown_and_written_as_a_timeline(cli: Cli, records: Path, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    done = cli("regions", records, "--timeline", tmp_path / "t.pftrace", "--json")
    assert done.code == 0, done.err
    (timeline,) = json.loads(done.out)["timelines"]
    assert timeline["unit"] == "ns"
    assert timeline["regions"][0]["mean"] == pytest.approx(5000, rel=0.02)
    assert "2 launches" in timeline["problems"][0]
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    trace.ParseFromString((tmp_path / "t.pftrace").read_bytes())
    names = {packet.track_descriptor.name for packet in trace.packet if packet.HasField("track_descriptor")}
    assert {"CTA 0", "warp 0"} <= names


def test_a_trace_of_iket_stands_beside_records_with_the_difference(cli: Cli, records: Path, tmp_path: Path) -> None:
    done = cli("regions", saved(tmp_path, IKET), "--beside", records)
    assert done.code == 0, done.err
    assert "measured with IKET, 1,000 ns" in done.out
    line = next(line for line in done.out.splitlines() if line.startswith("mma"))
    assert line.split()[1:4] == ["2", "2", "900.0"]


def test_ctas_of_a_grid_of_several_rows_stay_apart() -> None:
    places = [{"ctaId": [1, y, 0], "warpId": 0} for y in (2, 0)]
    found = timeline_of(IKET | {"locationTable": places}, "trace").spans
    assert [(span.name, span.cta) for span in found] == [("load", 1), ("mma", 1), ("mma", 0)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stringTable": []}, "is no index of a table of 0"),
        ({"launches": [{"kernelName": "k", "ranges": [{"startTs": 1}]}]}, "not understood: KeyError"),
        ({"locationTable": [{"ctaId": 0}]}, "not understood"),
        ({"launches": 3}, "not understood"),
        ({"locationTable": [{"ctaId": [0, -1], "warpId": 0}]}, "'-1' is no number"),
        ({"locationTable": [{"warpId": 0}]}, "place 0 has no ctaId"),
        ({"locationTable": [[1]]}, "not understood"),
        (
            {"launches": [{"kernelName": "k", "ranges": [IKET_RANGE | {"endTs": 1e300}]}]},
            "no time from 0 to 2^63 ns",
        ),
    ],
)
def test_what_is_no_trace_is_one_clear_error(cli: Cli, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    done = cli("regions", saved(tmp_path, IKET | change))
    assert done.code == 2
    assert said in done.err
    assert "iket.json" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.json",), "none.json"),
        (("none.py",), "none.py"),
        (("--save", "t.json", "x.json"), "saved already"),
    ],
)
def test_what_cannot_be_asked(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    done = cli("regions", *arguments)
    assert done.code == 2
    assert said in done.err


def test_a_trace_of_run_iket_on_an_h200() -> None:
    """Of one CTA of four warps: 64 dependent multiply-adds between a load and a store (DSL 4.8.1)."""
    values = json.loads((Path(__file__).parents[1] / "profiler/data/h200_iket.json").read_text())
    read = timeline_of(values, "h200")
    assert [(span.warp, span.name) for span in read.spans] == [
        (warp, name) for warp in range(4) for name in ("load", "work", "store")
    ]
    assert {span.time for span in read.spans} <= {32.0, 64.0, 1024.0}
    assert {span.time for span in read.spans if span.name == "work"} == {1024.0}
    assert {span.sm for span in read.spans} == {124}


def span(name: str, time: float) -> Span:
    return Span("k", 0, 0, 0, name, 0.0, time, 0)


def test_a_difference_is_told_for_equal_units_only() -> None:
    measured = Timeline("measured", "ns", (span("a", 200.0), span("b", 10.0)))
    modelled = Timeline("modelled", "ns", (span("a", 150.0), span("c", 1.0)))
    text = render(document("k", [measured, modelled]), OutputFormat.TEXT)
    assert "-25 %" in text
    assert text.count("%") == 1
    steps = Timeline("simulated", "steps", measured.spans)
    text = render(document("k", [steps, modelled]), OutputFormat.TEXT)
    assert "%" not in text
    assert "no time" in text


def test_wrong_results_and_missing_regions_fail() -> None:
    measured = Timeline("measured", "ns", (span("a", 200.0),))
    assert document("k", [measured]).ok
    wrong = document("k", [measured], ["group 0: 3 of 9 elements are wrong"])
    assert not wrong.ok
    assert render(wrong, OutputFormat.TEXT).startswith("wrong result: group 0")
    assert not document("k", [Timeline("measured", "ns", ())]).ok


@pytest.mark.slow
def test_an_instrumented_kernel_runs_and_its_time_is_modelled(cli: Cli, tmp_path: Path) -> None:
    called = "\n\ndef twice(x, y):\n    compiled()(pointer(x.data_ptr()), pointer(y.data_ptr()), 2)\n"
    source = KERNEL.replace("{imports}", FALLBACK.replace("no_such_package", "pytest_nvfp4")) + called
    kernel = under_a_contract(tmp_path, source, call="twice")
    done = cli("regions", kernel, "--arch", "sm_90a", "--device", "sim", "--json")
    assert done.code == 0, done.err
    simulated, modelled = json.loads(done.out)["timelines"]
    assert simulated["unit"] == "steps"
    assert modelled["unit"] == "ns"
    assert modelled["problems"] == []
    counts = [{each["name"]: each["count"] for each in timeline["regions"]} for timeline in (simulated, modelled)]
    assert counts[0] == counts[1]
    assert counts[0]["round"] == 8


CONTRACT = """
import numpy as np

destination = True
problems = {"one": {}}


def inputs(problem, rng):
    return {"x": np.ones(64, np.float32)}


def reference(x):
    return np.zeros(128, np.float32)
"""
"""What is computed is not judged by this command."""


def under_a_contract(folder: Path, source: str, *, call: str) -> Path:
    """Write a kernel whose function a contract calls with x of 64 and y of 128 elements, and its settings."""
    (folder / "k.py").write_text(source)
    (folder / "contract.py").write_text(CONTRACT)
    table = f'path = "k.py"\ncontract = "contract.py"\ncall = "k.py::{call}"\n'
    (folder / "pyproject.toml").write_text(f"[[tool.pytest_nvfp4.kernel]]\n{table}")
    return folder / "k.py"


WITH_IKET = """
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.experimental import iket


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor, rounds: Int32):
    thread, _, _ = cute.arch.thread_idx()
    total = Float32(0.0)
    whole = iket.range_start("whole kernel")
    for i in range(rounds):
        iket.range_push("round")
        total = total + x[i]
        iket.range_pop()
    iket.range_end(whole)
    y[thread] = total


@cute.jit
def launch(x: cute.Pointer, y: cute.Pointer, rounds: Int32):
    tensors = [cute.make_tensor(one, cute.make_layout(64)) for one in (x, y)]
    kernel(*tensors, rounds).launch(grid=(2, 1, 1), block=(64, 1, 1))


def thrice(x, y):
    pointers = [
        cute.runtime.make_ptr(Float32, one.data_ptr(), cute.AddressSpace.gmem, assumed_align=16) for one in (x, y)
    ]
    cute.compile(launch, *pointers, Int32(1))(*pointers, 3)
"""


@pytest.mark.slow
def test_ranges_of_iket_are_modelled_without_a_gpu(cli: Cli, tmp_path: Path) -> None:
    kernel = under_a_contract(tmp_path, WITH_IKET, call="thrice")
    how = ("--arch", "sm_90a", "--device", "sim", "--iket")
    done = cli("regions", kernel, *how, "--json")
    assert done.code == 0, done.err
    (modelled,) = json.loads(done.out)["timelines"]
    assert {each["name"]: each["count"] for each in modelled["regions"]} == {"whole kernel": 4, "round": 12}
    done = cli("regions", kernel, *how, "--no-model")
    assert done.code == 2
    assert "measures on a GPU only" in done.err


_BELOW = """
import os, subprocess, sys
from pytest_nvfp4.device.worker.regions import Request, plain_command
request = Request.model_validate_json(sys.argv[1])
bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
sys.exit(subprocess.run(plain_command(request), env=bare).returncode)
"""


@pytest.mark.slow
def test_a_process_below_a_tool_finds_this_package() -> None:
    """Also where it is a clone, whose folder the wall lets nobody list."""
    case = JobCase(problem=ProblemSpec.of(Problem("small", (Group(16, 128, 256),))), family="gpumode")
    request = Request(
        word="",
        main="own.py",
        entry=None,
        compile_options=(),
        case=case,
        warmup=0,
        slices=1,
        events=1,
        simulated=True,
        how="run-iket",
    )
    program = PythonProgram(
        source=_BELOW,
        arguments=(request.model_dump_json(),),
        files={"kernel/own.py": b"import os\nprint('imported', flush=True)\nos._exit(0)\n"},  # here is no device
        environ={},
        deadline_s=60,
    )
    written: list[bytes] = []
    done = execute(program, backend="host", visible="", on_output=lambda _, piece: written.append(piece))
    assert (done.returncode, b"".join(written)) == (0, b"imported\n")

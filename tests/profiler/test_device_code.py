"""The device code of regions, compiled by the DSL and run by the simulator: what is recorded and what is emitted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_nvfp4.profiler import emit, region, region_mark, session
from pytest_nvfp4.profiler.exchange import from_text
from pytest_nvfp4.profiler.records import KernelRecord
from pytest_nvfp4.profiler.spans import Timeline, timeline_of
from tests.profiler.programs import FALLBACK, IMPORT, KERNEL, run_program

MAIN = """
import types
from pytest_nvfp4 import profiler
from pytest_nvfp4.profiler.exchange import as_data

def module(imports):
    made = types.ModuleType("m")
    file = os.path.join(os.getcwd(), "kernel.py")  # one file: the PTX names it
    open(file, "w").write(SOURCE.replace("{imports}", imports))
    made.__file__ = file
    import linecache
    linecache.checkcache(file)
    exec(compile(open(file).read(), file, "exec"), made.__dict__)
    return made

found = {}
os.environ["CUTE_DSL_KEEP_PTX"] = "1"
plain = module(FALLBACK)
found["expected"] = plain.call(plain.compiled(), 3)
found["ptx"] = plain.ptx()
own = module(IMPORT)
own.compiled()
found["off"] = own.ptx()
with profiler.session(slices=8, events=32) as regions:
    function = own.compiled()
    found["on"] = own.ptx()
    try:
        profiler.region_mark("host")
    except RuntimeError as error:
        found["host"] = str(error)
    found["before"] = as_data(regions.records())
    found["result"] = own.call(function, 3)
    found["records"] = as_data(regions.records())
    regions.clear()
    own.call(function, 1)
    found["again"] = as_data(regions.records())
    regions.clear()
    own.call(own.launch, 1)
    own.call(own.launch, 1)
    found["jitted"] = as_data(regions.records())
with profiler.session(slices=3, events=4) as regions:
    own.call(own.compiled(), 2)
    found["small"] = as_data(regions.records())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    head = f"import json, os\nSOURCE = {KERNEL!r}\nIMPORT = {IMPORT!r}\nFALLBACK = {FALLBACK!r}\n"
    return run_program(tmp_path_factory.mktemp("regions"), head + MAIN)


def record(data: Any) -> KernelRecord:
    (one,) = from_text(json.dumps(data).encode(), source="the program")
    return one


def timeline(data: Any) -> Timeline:
    return timeline_of([record(data)], source="simulated")


@pytest.mark.slow
def test_switched_off_the_ptx_is_that_of_the_kernel_without_the_package(found: Any) -> None:
    assert found["off"] == found["ptx"]
    assert found["on"] != found["ptx"]
    assert found["on"].count("%globaltimer_lo") > 12


@pytest.mark.slow
def test_the_kernel_computes_the_same(found: Any) -> None:
    assert found["result"] == found["expected"]
    assert found["result"][0] == 5.0  # 3 rounds, and what was made inside the region


@pytest.mark.slow
def test_regions_of_all_scopes_are_recorded_by_whom_they_name(found: Any) -> None:
    times = timeline(found["records"])
    assert not times.problems
    assert times.unit == "steps"
    counts = {each.name: (each.count, each.warps) for each in times.statistics()}
    assert counts == {
        "whole": (4, 4),
        "round": (12, 4),
        "second warp": (6, 2),
        "helper": (6, 2),
        "block": (2, 2),
        "elected": (4, 4),
    }
    assert {(span.cta, span.warp) for span in times.spans if span.name == "block"} == {(0, 0), (1, 0)}
    assert {span.warp for span in times.spans if span.name == "second warp"} == {1}
    assert [span.value for span in times.spans if span.name == "round" and span.cta == span.warp == 0] == [0, 1, 2]
    assert {span.value for span in times.spans if span.marks} == {-3}
    depths = {span.name: span.depth for span in times.spans if span.warp == 1 and span.cta == 0}
    assert depths == {"whole": 0, "round": 1, "second warp": 2, "helper": 3, "seen": 2, "elected": 0}


@pytest.mark.slow
def test_records_are_of_the_launches_since_clear(found: Any) -> None:
    assert found["before"]["kernels"] == []
    assert record(found["again"]).launches == 1
    assert {each.name: each.count for each in timeline(found["again"]).statistics()}["round"] == 4


@pytest.mark.slow
def test_a_jitted_function_that_is_called_again_keeps_its_buffer(found: Any) -> None:
    jitted = record(found["jitted"])
    assert jitted.launches == 2
    assert "2 launches; each overwrites the one before" in timeline(found["jitted"]).problems[0]


@pytest.mark.slow
def test_too_few_slices_and_events_are_said(found: Any) -> None:
    small = record(found["small"])
    assert small.not_recorded == 1
    assert {warp.lost for warp in small.warps} > {0}
    text = "\n".join(timeline(found["small"]).problems)
    assert "1 warp had no slice" in text
    assert "found no room" in text


@pytest.mark.slow
def test_the_counters_stay_in_registers(found: Any) -> None:
    """A stack variable that LLVM could not promote would be local memory."""
    assert "__local_depot" not in found["on"]


@pytest.mark.parametrize("name", ["", "x" * 61, "ü" * 31, "a\nb"])
def test_names_are_printable_and_short(name: str) -> None:
    with pytest.raises(ValueError, match="printable text of 1 to 60 bytes"):
        region(name)


def test_scopes_sizes_and_nesting_are_checked() -> None:
    with pytest.raises(ValueError, match="warp, elected, block"):
        region("a", scope="cta")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"), session(events=0):
        pass
    with pytest.raises(ValueError, match="at most 1024 MiB"), session(slices=1 << 20):
        pass
    with session(), pytest.raises(RuntimeError, match="active already"), session():
        pass
    assert emit.Switch.recorder is None


@pytest.mark.slow
def test_outside_of_a_kernel_a_region_is_nothing_or_an_error(found: Any) -> None:
    region_mark("nothing")
    assert "not inside a kernel" in found["host"]

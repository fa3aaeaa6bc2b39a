"""What reads from outside, for the fuzzer: valid documents, and a reader that may refuse others by known errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_nvfp4.bench.baseline import read_baseline
from pytest_nvfp4.bench.mark import EXTRA_KEY, TIMER_NAME
from pytest_nvfp4.device.answer import check_result
from pytest_nvfp4.device.assemble import assemble
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, SourceFile
from pytest_nvfp4.device.remote import popcorn_output
from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteError
from pytest_nvfp4.device.remote.serialization import (
    compress,
    decompress,
    pack_batch,
    pack_result,
    unpack_batch,
    unpack_result,
)
from pytest_nvfp4.device.result import CaseReport, GroupOutput, Measurement, Result, SimulatedCall
from pytest_nvfp4.device.result_cache import SimulationCache, VerdictCache
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.isolation.fork_server.messages import receive_report
from pytest_nvfp4.isolation.outcome import Captured
from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.machine.wire import WireError
from pytest_nvfp4.machine.wire import parse as parse_header
from pytest_nvfp4.problem import GPUMODE, parse_shape
from pytest_nvfp4.settings import SettingsError
from pytest_nvfp4.settings import load as load_settings
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.events import Events
from pytest_nvfp4.toolchain.sealed_files import SealedFiles
from pytest_nvfp4.toolchain.sheet import Sheet
from pytest_nvfp4.toolchain.trace import Trace

Reader = Callable[[bytes], object]


@dataclass(frozen=True)
class Door:
    """One place where bytes come in.

    Attributes:
        valid: Documents that are read without an error.
        read: Reads a document.
        refuses: The errors by which it may refuse one.
        trusts: Whether a document that differs from the valid ones may be taken; sealed ones must not.
        cases: Number of damaged documents.
    """

    valid: Sequence[bytes]
    read: Reader
    refuses: tuple[type[Exception], ...] = ()
    trusts: bool = True
    cases: int = 600


_KERNEL = KernelSpec(
    files=(SourceFile(path="k.py", text="", sha256=hashlib.sha256(b"").hexdigest()),), main="k.py", arch="sm_100a"
)
_CASE = JobCase(problem=ProblemSpec.of(parse_shape("3x128x64")), family="gpumode")
VERIFY = Job(id="j", action="verify", kernel=_KERNEL, cases=(_CASE,))
_TIMED = Job(id="j", action="benchmark", kernel=_KERNEL, cases=(_CASE,))
_SIMULATED = Job(id="j", action="simulate", kernel=_KERNEL, cases=(_CASE,))
_SUBMITTED = {"mode": "test", "passed": True, "runner": "B200", "secret": False, "score": 1e-5}
_HASH = hashlib.sha256(b"").hexdigest()


def _line(event: str, **fields: object) -> dict[str, object]:
    return {"event": event, **fields}


def _answer(*events: dict[str, object]) -> bytes:
    whole = b"".join(json.dumps(event).encode() + b"\n" for event in (_line("begin", word="w"), *events))
    return whole + json.dumps(_line("end", sha256=hashlib.sha256(whole).hexdigest())).encode() + b"\n"


def _closed(data: bytes) -> bytes:
    """Give damaged events the hash that belongs to them, as a kernel could that guesses the word."""
    whole = data[: data.rfind(b"\n", 0, -1) + 1]
    return whole + json.dumps(_line("end", sha256=hashlib.sha256(whole).hexdigest())).encode() + b"\n"


def _result() -> Result:
    blob = Blob.inlined(b"\0" * 768)
    output = GroupOutput(call=1, case=0, group=0, rows=3, columns=128, data=blob, late_sha256=None, returned="c")
    report = CaseReport(call=1, case=0, inputs_before=_HASH, inputs_after=_HASH, launches=("k",))
    return Result(job="j", status="passed", outputs=(output,), cases=(report,), wall_s=1.0)


def _call() -> dict[str, object]:
    launch = {
        "kernel": "k", "grid": [1, 1, 1], "block": [128, 1, 1], "cluster": [1, 1, 1], "shared_bytes": 0,
        "ctas_per_sm": 1, "counters": {"ctas": 1}, "writers": 1,
    }  # fmt: skip
    writes = {"group": 0, "elements": 384, "never": 0, "by_two": 0, "twice": 0, "ctas": 3, "tiles": 3}
    return {"call": 1, "case": 0, "model": "NVIDIA B200", "sms": 148, "launches": [launch], "outputs": [writes]}


def _outcome(data: bytes) -> Outcome:
    nothing = Captured("")
    return Outcome(
        returncode=0, timed_out=False, result=data, result_overflow=False, stdout=nothing, stderr=nothing, wall_s=1.0
    )  # fmt: skip


def _worker(job: Job, folder: Path) -> Reader:
    def read(data: bytes) -> object:
        for answer in (data, _closed(data)):
            result = assemble(job, _outcome(answer))
            assert len(result.findings) < 2000
            if job.action == "verify":
                Judge().judge(job, result, folder=folder)
        return result

    return read


def _measurement() -> dict[str, object]:
    one = Measurement(
        case=0, device_us=(5.0,), host_us=(9.0,), call_us=1.0, late_rounds=0, method="m", l2="cold", sets=3
    )
    return one.model_dump(mode="json")


def _report(data: bytes) -> object:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right, contextlib.suppress(OSError):
        left.send(data[:60_000])
        left.shutdown(socket.SHUT_WR)
        return receive_report(right, timeout_s=5)
    return None


def worker_doors(folder: Path) -> dict[str, Door]:
    """Answers of processes and machines."""
    output = _result().outputs[0].model_dump(mode="json")
    report = _result().cases[0].model_dump(mode="json")
    batch = Batch(jobs=(VERIFY,))
    answer = pack_result(BatchResult(batch=batch.id, results=(_result(),)))

    def remote(data: bytes) -> object:
        unpacked = unpack_result(data)
        return [check_result(VERIFY, result) for result in unpacked.results]

    compiled = [
        _line("stage", name="import", seconds=0.1),
        _line("dsl", version="4.8.1", folder="/x"),
        _line("values", values=[["go.tile", "(4,4):(1,4)", "/k.py", 3]], launches=0),
        _line("finding", kind="x", message="m", severity="warning"),
        _line("dependencies", files=["/k.py"]),
        _line("end", ok=True),
    ]
    device = _line("device", name="NVIDIA B200", capability=[10, 0], simulated=True)
    return {
        "events of verify": Door(
            (_answer(device, _line("output", **output), _line("case", **report)),), _worker(VERIFY, folder), cases=1000
        ),
        "events of a benchmark": Door(
            (_answer(device, _line("measurement", **_measurement())),), _worker(_TIMED, folder)
        ),
        "events of a simulation": Door(
            (_answer(device, _line("simulated", **_call()), _line("case", **(report | {"call": 0}))),),
            _worker(_SIMULATED, folder),
        ),
        "events of a compile": Door(
            (b"".join(json.dumps(event).encode() + b"\n" for event in compiled),), Events.parse, cases=1000
        ),
        "answers of remotes": Door((answer.encode(),), remote, (RemoteError, DoorError), cases=1000),
        "compressed answers": Door((compress(answer),), decompress, (RemoteError,), cases=400),
        "batches": Door(
            (pack_batch(batch).encode(),),
            lambda data: unpack_batch(data.decode("utf-8", "surrogateescape")),
            (RemoteError,),
        ),
        "jobs": Door((VERIFY.model_dump_json().encode(),), Job.model_validate_json, (ValidationError,)),
        "reports of the fork server": Door((b'{"started": 12}', b'{"refused": "x"}', b'{"ended": -9}'), _report),
        "headers of requests": Door(
            (b'{"kind": "launch", "grid": [1, 1, 1], "name": "k"}',), parse_header, (WireError,)
        ),
        "reports of popcorn": Door(
            (
                json.dumps(
                    {"runs": [{"mode": "test", "passed": True, "runner": "B200", "secret": False, "score": 1e-5}]}
                ).encode(),
                "Passed 2/2 tests\n✅ k: 1; m: 2\n⏱ 5.1 ± 0.1 us\n⚡ 5.0 us 🐌 6.0 us\n".encode(),
            ),
            lambda data: popcorn_output.parse(data.decode("utf-8", "replace")),
            (ValueError,),
        ),
        "documents": Door((json.dumps(_call()).encode(),), lambda data: read_json(data, source="it"), (DoorError,)),
    }


def _sealed(path: Path, load: Callable[[], object]) -> Reader:
    """Return a reader of a document that lies in a file."""

    def read(data: bytes) -> object:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return load()

    return read


def _only_file(folder: Path, suffix: str) -> Path:
    (path,) = (path for path in folder.rglob(f"*{suffix}") if path.is_file())
    return path


def cache_doors(folder: Path) -> dict[str, Door]:
    """Entries of caches: whatever differs from what was stored in one bit is a miss."""
    verdicts = VerdictCache(SealedFiles(folder / "verdicts"))
    verdicts.add(_KERNEL, _CASE)
    verdict = _only_file(folder / "verdicts/sealed/results", ".json")
    simulations = SimulationCache(SealedFiles(folder / "simulations"))
    call = SimulatedCall.model_validate(_call() | {"call": 0})
    simulations.add(_KERNEL, SimulationResult(_CASE, "passed", (), call))
    simulation = _only_file(folder / "simulations/sealed/results", ".json")
    traces, key = TraceCache(folder / "traces"), "0" * 32
    made = folder / "made"
    module = made / "compiled-0123456789abcdef" / ("a" * 40)
    module.mkdir(parents=True)
    (module / "module.mlirbc").write_bytes(b"ML\xefR" + bytes(range(100)))
    (module / "manifest.json").write_text(json.dumps({"returned": False, "written": []}))
    trace = Trace(
        kernel="/k.py", entry=None, problem="gpumode-0", problem_sizes=tuple(GPUMODE[0].sizes), arch="sm_100a",
        options=(), dsl_version="4.8.1", python="3.12", ok=True, values=(), launches=(), launch_count=0, code=(),
        artifacts=(), findings=(), dependencies={}, stages={}, seconds=1.0, session=None, bundle=None,
    )  # fmt: skip
    stored = Path(traces.store(key, trace, made).folder or "")

    def compiled() -> object:
        into = folder / "into"
        if not traces.copy_compiled(key, module.parent.name, into=into):
            return None
        found = (into / module.name / "module.mlirbc").read_bytes()
        (into / module.name / "module.mlirbc").unlink()
        return found

    entry = stored / "trace.json"
    code = stored / module.parent.name / module.name / "module.mlirbc"
    document = entry.read_bytes()

    def whole(load: Callable[[], object]) -> Callable[[], object]:
        """Put the trace itself back, which a refusal has removed with its entry."""

        def again() -> object:
            entry.write_bytes(document)
            return load()

        return again

    return {
        "verdicts": Door(
            (verdict.read_bytes(),), _sealed(verdict, lambda: verdicts.has(_KERNEL, _CASE) or None), trusts=False
        ),
        "simulations": Door(
            (simulation.read_bytes(),), _sealed(simulation, lambda: simulations.get(_KERNEL, _CASE)), trusts=False
        ),
        "traces": Door((document,), _sealed(entry, lambda: traces.load(key, session=None)), trusts=False),
        "compiled modules": Door((code.read_bytes(),), _sealed(code, whole(compiled)), trusts=False),
    }


_SETTINGS = b"""
[tool.pytest_nvfp4]
default-problems = ["small", "96x128x256"]
protected = ["go.*"]
compile-options = ["--opt-level 2"]
fitted-problem = true
[tool.pytest_nvfp4.problems]
small = { m = [96, 128], n = 128, k = [256, 512], seed = 7 }
[[tool.pytest_nvfp4.kernel]]
path = "k/*.py"
name = "a"
entry = "k/build.py::go"
arch = "sm_90a"
cost-tolerance = { "global.store.bytes" = "5%" }
"""


def file_doors(folder: Path) -> dict[str, Door]:
    """Files of the user's repository, which a pull request may have written."""

    def settings(data: bytes) -> object:
        (folder / "pyproject.toml").write_bytes(data)
        return load_settings(folder)

    sheet = Sheet("launch", {"dsl": "4.8.1"}, {"grid": "1x1x1", "block": "128x1x1"})
    types = [("go.tile", '!cute.layout<"(4,4):(1,4)">'), ("go.x", '!cute.layout<"(8):(1)">')]
    listing = Listing.from_pairs({"dsl": "4.8.1"}, types)
    device = {"name": "NVIDIA B200", "capability": [10, 0]}
    measured = {
        "device": device,
        "problem": _CASE.problem.model_dump(mode="json"),
        "method": "m",
        "l2": "cold",
        "sets": 3,
    }
    baseline = {"options": {"timer": TIMER_NAME}, "stats": {"data": [1e-5, 1e-5]}, "extra_info": {EXTRA_KEY: measured}}
    return {
        "settings": Door((_SETTINGS,), settings, (SettingsError,), cases=1000),
        "sheets": Door(
            (sheet.render().encode(),), lambda data: Sheet.parse(data.decode(), kind="launch"), (ValueError,)
        ),
        "listings": Door((listing.render().encode(),), lambda data: Listing.parse(data.decode()), (ValueError,)),
        "baselines": Door(
            (json.dumps(baseline).encode(),),
            lambda data: read_baseline(_mapping(data), nodeid="x", source="it"),
            (ValueError,),
            cases=400,
        ),
    }


def _mapping(data: bytes) -> dict[str, object]:
    values = read_json(data, source="it")
    if not isinstance(values, dict):
        raise DoorError("it", "is no object")
    return values

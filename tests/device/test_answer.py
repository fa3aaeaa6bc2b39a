"""Answers that lie: each is one finding with a sentence, whether a worker or a remote gives it."""

from __future__ import annotations

import copy
import hashlib
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.answer import ANSWER, check_result
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.call_plan import plan_calls
from pytest_nvfp4.device.job import Job, Profiling
from pytest_nvfp4.device.profiling.record import MOST_FILE_BYTES, ProfileRecord, ToolFile
from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteError
from pytest_nvfp4.device.remote.serialization import most_bytes, pack_result, unpack_result
from pytest_nvfp4.device.result import CaseReport, GroupOutput, Result
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.numerics.judge import Reference
from pytest_nvfp4.toolchain.trace import MOST_FINDINGS

from .worker_events import BENCHMARK, DEVICE, answer, line, result

VERIFY = BENCHMARK.model_copy(update={"action": "verify", "order_seed": 3})
SIMULATE = BENCHMARK.model_copy(update={"action": "simulate"})
PROFILE = BENCHMARK.model_copy(update={"action": "profile", "profiling": Profiling(mode="torch")})
CALL = next(at for at, call in enumerate(plan_calls(VERIFY.cases, 3)) if call.other_sizes is None and call.case == 0)
BLOB = Blob.inlined(bytes(2 * 256 * (8 + 5 + 128))).model_dump()
LAUNCH = {
    "kernel": "k",
    "grid": [1, 1, 1],
    "block": [32, 1, 1],
    "cluster": [1, 1, 1],
    "shared_bytes": 0,
    "ctas_per_sm": 1,
    "counters": {"ctas": 1},
}
WORK = {"kind": "kernel", "name": "k", "start_ns": 0, "duration_ns": 5}
COUNTED = {"way": "timed", "inputs": [0, 1], "device_us": 1.0, "works": [WORK]}
LAUNCHES = {"calls": [COUNTED, {**COUNTED, "way": "plain", "device_us": None}]}
WRITES = {"group": 0, "elements": 5 * 256, "never": 0, "by_two": 0, "twice": 0, "ctas": 1, "tiles": 1}
HONEST: dict[str, tuple[Job, dict[str, Any]]] = {
    "status": (VERIFY, {"status": "passed"}),
    "stage": (VERIFY, {"name": "call", "seconds": 1.5}),
    "finding": (VERIFY, {"kind": "run", "message": "m", "line": 3, "notes": ["n"]}),
    "device": (VERIFY, {"name": "NVIDIA B200", "capability": [10, 0], "sms": 148}),
    "output": (
        VERIFY,
        {
            "call": CALL,
            "case": 0,
            "group": 0,
            "rows": 141,
            "columns": 256,
            "data": BLOB,
            "returned": "c",
            "inputs": None,
        },
    ),
    "case": (VERIFY, {"call": CALL, "case": 0, "inputs_before": "a", "inputs_after": "a", "launches": ["k"]}),
    "measurement": (
        BENCHMARK,
        {
            "case": 1,
            "device_us": [1.0, 2.0],
            "host_us": [3],
            "call_us": 1.0,
            "late_rounds": 0,
            "method": "m",
            "l2": "cold",
            "sets": 3,
            "launches": LAUNCHES,
        },
    ),
    "sample": (
        BENCHMARK,
        {"case": 1, "call": 0, "inputs": [0, 3], "parts": [{"group": 0, "row": 0, "column": 0, "bits": "00"}]},
    ),
    "simulated": (
        SIMULATE,
        {"call": 0, "case": 0, "model": "B200", "sms": 148, "launches": [LAUNCH], "outputs": [WRITES]},
    ),
    "profiled": (PROFILE, {"case": 1, "warmup_us": 1.0, "region_us": [2.0], "works": [WORK], "unrecorded": None}),
}
"""An event of each kind, and a job that asks for it."""

LIES: list[tuple[str, str, object]] = [
    ("profiled", "case", 99),
    ("profiled", "region_us", [2.0, 3.0]),
    ("profiled", "warmup_us", -1.0),
    ("profiled", "works", [{**WORK, "duration_ns": -1}]),
    ("status", "status", "fine"),
    ("status", "status", ["passed"]),
    ("status", "status", None),
    ("stage", "name", {"a": 1}),
    ("stage", "seconds", -1),
    ("finding", "severity", "fatal"),
    ("finding", "line", -5),
    ("finding", "line", 10**18),
    ("finding", "file", "a\0b"),
    ("finding", "extra", 1),
    ("device", "capability", [10]),
    ("device", "capability", [-1, 0]),
    ("device", "sms", 10**19),
    ("output", "call", -1),
    ("output", "call", CALL + 1000),
    ("output", "case", 2),
    ("output", "case", 1.5),
    ("output", "group", 1),
    ("output", "group", True),
    ("output", "rows", 10**9),
    ("output", "rows", -141),
    ("output", "columns", 128),
    ("output", "returned", 7),
    ("output", "inputs", [0, 10**9]),
    ("output", "inputs", [10**9, 0]),
    ("output", "data", {**BLOB, "size": 4 << 30}),
    ("output", "data", {**BLOB, "size": -1}),
    ("output", "data", {**BLOB, "sha256": "0"}),
    ("output", "data", {**BLOB, "inline": None}),
    ("output", "data", {"sha256": "0" * 64, "size": BLOB["size"], "file": "../../etc/passwd"}),
    ("output", "data", {"sha256": "0" * 64, "size": BLOB["size"], "file": "/etc/passwd"}),
    ("output", "data", {"sha256": "0" * 64, "size": BLOB["size"], "file": "a\0"}),
    ("case", "call", CALL + 1000),
    ("case", "case", -1),
    ("case", "launches", "k"),
    ("case", "findings", [{"kind": "x"}]),
    ("measurement", "device_us", [-1.0]),
    ("measurement", "device_us", [1.0] * 51),
    ("measurement", "device_us", ["nan"]),
    ("measurement", "host_us", ["inf"]),
    ("measurement", "call_us", 1e300),
    ("measurement", "case", 9),
    ("measurement", "l2", "hot"),
    ("measurement", "sets", -3),
    ("measurement", "launches", None),
    ("measurement", "launches", {"calls": [COUNTED]}),
    ("measurement", "launches", {"calls": [{**COUNTED, "works": [WORK] * 2001}] * 2}),
    ("measurement", "launches", {"calls": [{**COUNTED, "works": [{**WORK, "duration_ns": -1}]}] * 2}),
    ("measurement", "launches", {"calls": [{**COUNTED, "works": [{**WORK, "start_ns": 10**19}]}] * 2}),
    ("measurement", "launches", {"calls": [{**COUNTED, "works": [{**WORK, "name": "k" * 401}]}] * 2}),
    ("measurement", "launches", {"calls": [{**COUNTED, "inputs": [0, 10**9]}, LAUNCHES["calls"][1]]}),
    ("measurement", "launches", {"unavailable": "x" * 1001}),
    ("sample", "call", 52),
    ("sample", "inputs", [0, 10**12]),
    ("sample", "inputs", [0]),
    ("sample", "parts", [{"group": 0, "row": 0, "column": 0, "bits": "0" * 5000}]),
    ("simulated", "call", 7),
    ("simulated", "sms", 0),
    ("simulated", "launches", [{**LAUNCH, "cluster": [0, 1, 1]}]),
    ("simulated", "launches", [{**LAUNCH, "counters": {"ctas": 10**19}}]),
    ("simulated", "outputs", [{**WRITES, "group": 4}]),
    ("simulated", "outputs", [{**WRITES, "elements": 1}]),
    ("nonsense", "a", 1),
]
"""A kind of event, one of its fields, and a value that it cannot have."""
FIELDS = {
    "output": "outputs",
    "case": "cases",
    "measurement": "measurements",
    "sample": "samples",
    "simulated": "simulated",
    "finding": "findings",
}


def refused(made: Result) -> str:
    """The sentence of a refused answer."""
    (finding,) = made.findings
    assert finding.kind == ANSWER, made
    assert made.status == "error"
    assert finding.message.endswith(": the answer is refused")
    assert "\n" not in finding.message
    assert len(finding.message) < 700
    assert not any(getattr(made, field) for field in FIELDS.values() if field != "findings")
    return finding.message


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_event_is_taken(kind: str) -> None:
    job, event = HONEST[kind]
    made = result(answer(line(event=kind, **event)), job=job)
    assert [finding.kind for finding in made.findings] == (["run"] if kind == "finding" else [])
    assert made.status == "passed"


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie[0]}-{lie[1]}-{str(lie[2])[:24]}")
def test_a_worker_that_lies_is_refused(lie: tuple[str, str, object]) -> None:
    kind, field, value = lie
    job, event = HONEST.get(kind, (VERIFY, {}))
    message = refused(result(answer(line(event=kind, **{**event, field: value})), job=job))
    assert "the worker's " in message


@pytest.mark.parametrize(
    "lie", [lie for lie in LIES if lie[0] in FIELDS], ids=lambda lie: f"{lie[0]}-{lie[1]}-{str(lie[2])[:24]}"
)
def test_a_remote_that_lies_is_refused(lie: tuple[str, str, object]) -> None:
    kind, field, value = lie
    job, event = HONEST[kind]
    made = {"job": job.id, "status": "passed", FIELDS[kind]: [{**event, field: value}]}
    text = json.dumps({"nvfp4": 2, "result": {"batch": "b", "results": [made]}, "blobs": {}})
    try:
        (read,) = unpack_result(text).results
    except RemoteError as error:
        kind, said = error.kind, str(error)
    else:
        kind, said = "remote", refused(check_result(job, read, source="the result of the remote"))
    assert kind == "remote"
    assert "the result of the remote" in said
    assert "the answer is refused" in said
    assert len(said) < 900


@pytest.mark.parametrize("field", ["busy_s", "startup_s", "wall_s"])
@pytest.mark.parametrize("value", [-1.0, "NaN", "1e999", 1e18])
def test_seconds_of_a_remote_are_seconds(field: str, value: object) -> None:
    batch = BatchResult(batch="b", results=(Result(job="j", status="passed", wall_s=7777.0),), busy_s=7777.0)
    text = pack_result(batch).replace('"startup_s":0.0', '"startup_s":7777.0')
    assert unpack_result(text).busy_s == 7777.0
    with pytest.raises(RemoteError):
        unpack_result(text.replace(f'"{field}":7777.0', f'"{field}":{value}'))


TWICE: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "status": (lambda event: {**event, "status": "failed"}, "contradicts"),
    "device": (lambda event: {**event, "name": "NVIDIA B300"}, "another device"),
    **dict.fromkeys(("output", "case", "measurement", "sample", "simulated"), (copy.copy, "repeats")),
}


@pytest.mark.parametrize("kind", TWICE)
def test_events_that_contradict_are_refused(kind: str) -> None:
    job, event = HONEST[kind]
    change, words = TWICE[kind]
    assert words in refused(result(answer(line(event=kind, **event), line(event=kind, **change(event))), job=job))


def test_a_later_hash_needs_its_output_and_comes_once() -> None:
    _, event = HONEST["output"]
    late = line(event="late", call=CALL, case=0, group=0, sha256="1" * 64, after=None)
    output = line(event="output", **event)
    assert result(answer(output, late), job=VERIFY).outputs[0].late_sha256 == "1" * 64
    assert "was not sent" in refused(result(answer(late, output), job=VERIFY))
    assert "repeats" in refused(result(answer(output, late, late), job=VERIFY))


def test_what_a_job_does_not_ask_for_is_refused() -> None:
    _, sample = HONEST["sample"]
    assert "does not ask for" in refused(result(answer(line(event="sample", **sample)), job=VERIFY))
    other = Result(job="another", status="passed")
    assert "that of job 'another'" in refused(check_result(VERIFY, other))


def test_a_profile_fits_its_job() -> None:
    blob = Blob.inlined(b"x")
    one, other = (ToolFile(name="a", data=blob), ToolFile(name="a", data=blob))
    large = ToolFile(name="b", data=blob.model_copy(update={"size": MOST_FILE_BYTES}))
    probe = PROFILE.model_copy(update={"action": "probe"})
    for job, record in (
        (VERIFY, ProfileRecord()),
        (probe, ProfileRecord(files=(one,))),
        (PROFILE, ProfileRecord(files=(one, other))),
        (PROFILE, ProfileRecord(files=(one, large))),
    ):
        made = check_result(job, Result(job=job.id, status="passed", profile=record))
        assert made.findings[0].kind == ANSWER, record
    fits = Result(job=PROFILE.id, status="passed", profile=ProfileRecord(files=(one,)))
    assert check_result(PROFILE, fits) == fits


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"event":' * 500,
        b'{"event": "status", "status": 1e999}',
        b'{"event": "device", "name": NaN}',
        b'{"event": "stage", "event": "end", "name": "x"}',
        b'{"event": 7}',
        b"7",
        b'{"event": "stage", "name": "\\ud800"}',
        b'{"event": "stage", "name": "' + b"x" * 100_000 + b'"}',
        b"\xff",
        b"",
        b'{"event": "stage", "name": "x", "seconds": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda text: text[:20].decode("latin-1"),
)
def test_lines_that_are_no_events_are_refused(text: bytes) -> None:
    refused(result(answer(line(**DEVICE), text + b"\n")))


def test_a_line_of_another_writer_is_a_cheat_whatever_it_is() -> None:
    assert result(answer(line(**DEVICE), then=b"[" * 1000 + b"\n")).status == "cheated"


@pytest.mark.slow
def test_millions_of_events_and_findings_are_counted_and_take_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    warnings = line(event="finding", kind="w", message="m", severity="warning") * (MOST_FINDINGS + 20)
    made = result(answer(warnings), job=VERIFY)
    assert (len(made.findings), made.findings[-1].severity) == (MOST_FINDINGS + 1, "warning")
    assert "and 20 more" in made.findings[-1].message
    made = result(answer(warnings, line(event="finding", kind="e", message="m")), job=VERIFY)
    assert made.findings[-1].severity == "error"
    report = line(event="case", **HONEST["case"][1], findings=[{"kind": "e", "message": "m"}] * 3000)
    (case,) = result(answer(report), job=VERIFY).cases
    assert (len(case.findings), case.findings[-1].severity) == (MOST_FINDINGS + 1, "error")
    made = result(answer(line(event="finding", kind="e", message="m" * 10_000_000)), job=VERIFY)
    assert len(made.findings[0].message) < 40_000
    assert "more than" in refused(result(answer(b'{"event":"stage","name":""}\n' * 1_500_000), job=VERIFY))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600 << 10, "KiB; it is about 300 MB, most of it the text of the events"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_change_of_an_honest_answer_is_a_result_or_one_sentence(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(HONEST)))
    job, event = HONEST[kind]
    field = data.draw(st.sampled_from(sorted(event)))
    value = data.draw(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers(), max_size=3)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    )
    changed = {**event, field: value}
    if data.draw(st.booleans()):
        del changed[field]
    made = result(answer(line(event=kind, **changed)), job=job)
    assert made.status in ("passed", "error", "cheated", "failed", "unsupported", "unavailable", "timeout", "crashed")
    if any(finding.kind == ANSWER for finding in made.findings):
        refused(made)


def test_the_size_of_an_answer_follows_from_its_batch() -> None:
    batch = Batch(jobs=(VERIFY,))
    blob = Blob.inlined(hashlib.shake_256(b"x").digest(2 * 256 * 141)).model_dump()
    outputs = [
        {
            **HONEST["output"][1],
            "call": at,
            "case": call.case,
            "inputs": None,
            "data": blob,
        }
        for at, call in enumerate(plan_calls(VERIFY.cases, 3))
        if call.other_sizes is None
    ]
    made = Result.model_validate({"job": "j", "status": "passed", "outputs": outputs})
    assert check_result(VERIFY, made) is made
    text = pack_result(BatchResult(batch=batch.id, results=(made,)))
    assert len(text) < most_bytes(batch) < (1 << 30)


def test_a_verdict_needs_every_call_that_was_asked(tmp_path: Path) -> None:
    """An answer with the right outputs of one call, and nothing of the others, is no pass."""
    job = VERIFY.model_copy(update={"cases": VERIFY.cases[:1]})
    plan = plan_calls(job.cases, job.order_seed)
    asked = [at for at, call in enumerate(plan) if call.other_sizes is None]
    outputs, reports = [], []
    for at in asked:
        (group,) = rotation.verified_inputs(job.cases[0], key=job.row_key, changed=plan[at].changed).groups
        buffer = group.c_buffer()
        group.split_c(buffer)[1][...] = Reference.of(group.exact()).want
        event = {**HONEST["output"][1], "call": at, "data": Blob.inlined(buffer.tobytes()).model_dump()}
        outputs.append(GroupOutput.model_validate(event))
        reports.append(CaseReport(call=at, case=0, inputs_before="a", inputs_after="a"))

    def status(*, left_out: int | None = None, reported: bool = True, warned: bool = False) -> str:
        said = [
            one if not warned else one.model_copy(update={"findings": (Finding("w", "m", severity="warning"),)})
            for one in reports
            if reported or one.call != left_out
        ]
        made = Result(
            job=job.id,
            status="passed",
            outputs=tuple(one for one in outputs if one.call != left_out),
            cases=tuple(said),
        )
        assert check_result(job, made) is made
        (verdict,) = Judge().judge(job, made, folder=tmp_path)
        return verdict.status

    assert status() == "passed"
    assert status(warned=True) == "passed"
    for call in asked:
        assert status(left_out=call) == "crashed"
        assert status(left_out=call, reported=False) == "crashed"
        assert status(left_out=call, warned=True) == "crashed", "a warning explains nothing"

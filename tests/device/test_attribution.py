"""Who computed the outputs: the parent's judgement of what the machine's side reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.answer import check_result
from pytest_nvfp4.device.attribution import CallAttribution, GroupAttribution, HostBytes, Request, WrittenBy
from pytest_nvfp4.device.attribution_verdict import judge_origins
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.call_plan import plan_calls
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.result import CaseReport, Result
from pytest_nvfp4.problem import parse_shape

CASE = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256,7x128x256")), family="gpumode")
NEEDED = 47 * 128 * 256
KERNEL = WrittenBy(kind="launch", what="gemm", file="/job/source/k.py", line=30, elements=5120)
MM = Request(what="torch's mm", file="/job/source/k.py", line=12)
READ = HostBytes(
    sent=Request(what="cuMemcpyHtoD", file="/job/source/k.py", line=9),
    read=Request(what="a read by the host", file="/job/source/k.py", line=7),
)


def job(**fields: Any) -> Job:
    file = Path(__file__).parent / "kernels" / "honest.py"
    kernel, _ = KernelSpec.from_files(file, arch="sm_100a", **fields)
    return Job(id="t", action="verify", kernel=kernel, cases=(CASE,), order_seed=7, row_key=7)


def call(*, multiply_adds: int = NEEDED, kernels: int = 1, **group: Any) -> CallAttribution:
    groups = tuple(
        GroupAttribution(group=number, elements=m * 128, **{"written": (KERNEL,), **group})
        for number, m in enumerate((40, 7))
    )
    return CallAttribution(groups=groups, kernels=kernels, multiply_adds=multiply_adds)


def judged_call(asked: Job) -> int:
    plan = plan_calls(asked.cases, asked.order_seed)
    return next(at for at, one in enumerate(plan) if one.other_sizes is None)


def messages(attribution: CallAttribution, *, replayed: tuple[Blob, ...] = (), **fields: Any) -> list[str]:
    asked = job(**fields)
    report = CaseReport(
        call=judged_call(asked), case=0, inputs_before="", inputs_after="", attribution=attribution, replayed=replayed
    )
    found = judge_origins(asked, report, folder=Path("/nowhere"))
    assert {finding.kind for finding in found} <= {"origin"}
    return [f"{finding.line}: {finding.message}" for finding in found]


def replayed(*, key: int = 7) -> tuple[Blob, ...]:
    inputs = rotation.replayed_inputs(CASE, key=key)
    return tuple(Blob.inlined(group.exact().rounded().tobytes()) for group in inputs.groups)


def test_a_kernel_that_did_the_work_is_clean() -> None:
    assert messages(call()) == []
    assert call().summary == "C by 1 kernel"


def test_too_few_multiply_adds_name_who_wrote_c() -> None:
    (message,) = messages(call(multiply_adds=NEEDED - 1))
    assert message.startswith(
        "30: the launched kernels that C descends from did 1,540,095 multiply-adds of the 1,540,096"
    )
    assert "C was written by kernel gemm at k.py:30" in message


def test_a_copy_from_the_host_is_an_error_wherever_its_bytes_come_from() -> None:
    copy = WrittenBy(
        kind="copy", what="cudaMemcpy", file="/job/source/k.py", line=12, elements=256, first=(1, 0), last=(2, 127)
    )
    (message,) = messages(call(written=(KERNEL, copy)), torch_operators=True)
    assert message.startswith(
        "12: C of 2 groups (the first: 0) was written by a copy from the host: cudaMemcpy at k.py:12"
    )
    assert "wrote 256 of the 5,120 elements of group 0, from row 1, column 0 to row 2, column 127" in message


def test_operators_of_torch_compute_only_where_the_settings_allow_it() -> None:
    attribution = call(
        multiply_adds=0, kernels=0, computed=(MM,), written=(WrittenBy(kind="operator", what="torch's copy_"),)
    )
    (message,) = messages(attribution)
    assert message.startswith("12: C of 2 groups (the first: 0) descends from torch's mm at k.py:12")
    assert "torch-operators = true" in message
    assert messages(attribution, torch_operators=True) == []
    assert attribution.summary == "C by torch's mm"


def test_what_the_host_sent_after_a_read_is_judged_by_the_same_requests_on_other_inputs() -> None:
    attribution = call(host=(READ,))
    assert messages(attribution, replayed=replayed()) == []
    (message,) = messages(attribution, replayed=replayed(key=8))
    assert message.startswith("9: C of group 0 descends from what the host sent after it had read")
    assert "a read by the host at k.py:7, then cuMemcpyHtoD at k.py:9; the same requests give a wrong C" in message


@pytest.mark.parametrize("why", ["", "the call made more than 1 request"])
def test_requests_that_were_not_repeated_prove_nothing(why: str) -> None:
    attribution = call(host=(READ,)).model_copy(update={"not_replayed": why})
    (message,) = messages(attribution)
    assert "cannot be found out" in message


def test_an_answer_about_other_sizes_is_refused() -> None:
    asked = job()
    groups = (GroupAttribution(group=0, elements=1),)
    attribution = CallAttribution(groups=groups, kernels=1, multiply_adds=1)
    report = CaseReport(call=judged_call(asked), case=0, inputs_before="", inputs_after="", attribution=attribution)
    result = check_result(asked, Result(job="t", status="passed", cases=(report,)))
    assert "elements of group 0, which the problem lacks" in result.findings[0].message


def test_files_are_named_as_the_user_knows_them() -> None:
    renamed = call(host=(READ,)).with_files({"/job/source/k.py": "/home/me/k.py"})
    assert renamed.groups[0].written[0].file == "/home/me/k.py"
    assert renamed.groups[0].host[0].read.file == "/home/me/k.py"


def test_verified_inputs_depend_on_the_key_and_published_ones_but_for_a_row() -> None:
    other = CASE.model_copy(update={"family": "pow2_exact"})
    for case, rows in ((CASE, 1), (other, 40)):
        own = rotation.set_inputs(case, 0).groups[0]
        one, two = (rotation.verified_inputs(case, key=key).groups[0] for key in (1, 2))
        assert one.digest() != two.digest()
        assert 1 <= int((one.a != own.a).any(axis=1).sum()) <= rows
        assert np.array_equal(one.b, own.b) is (case is CASE)
        assert rotation.verified_inputs(case, key=1).groups[0].digest() == one.digest()
        changed = rotation.verified_inputs(case, key=1, changed=True).groups[0]
        assert int((changed.a != one.a).any(axis=1).sum()) == 1
        replay = rotation.replayed_inputs(case, key=1).groups[0]
        assert not np.array_equal(replay.a, one.a)
        assert not np.array_equal(replay.b, one.b)
        assert np.array_equal(replay.sfa_reordered, one.sfa_reordered)

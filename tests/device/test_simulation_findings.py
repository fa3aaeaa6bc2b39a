"""A kernel that does something wrong and goes on: the simulator's finding and the judgement of the result, both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec, Simulating
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.device.verify import Verifier
from pytest_nvfp4.device.worker.sim_findings import merge_by_statement, worker_finding
from pytest_nvfp4.device.worker.simulated_process import SimulatedProcess
from pytest_nvfp4.finding import Finding, Location, Where
from pytest_nvfp4.problem import parse_shape

pytest.importorskip("torch")

OVERRUNS = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr


@cute.kernel
def fill(c: cute.Tensor):
    column, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    for again in cutlass.range_constexpr(2):
        c[row, column + 64 * again] = cutlass.Float16(1.0)


@cute.jit
def go(start: cute.Pointer, rows: cutlass.Int32):
    c = cute.make_tensor(start, cute.make_layout((40, 128), stride=(128, 1)))
    fill(c).launch(grid=(rows, 1, 1), block=(64, 1, 1))


def custom_kernel(data):
    abc, _, _, _ = data
    go(make_ptr(cutlass.Float16, abc[0][2].data_ptr(), cute.AddressSpace.gmem, assumed_align=16), cutlass.Int32(ROWS))
    return [c for _, _, c in abc]
"""


@pytest.mark.slow
def test_a_store_past_the_end_of_c_and_a_wrong_result_are_both_told(tmp_path: Path) -> None:
    case = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256")), family="pow2_exact")
    kinds = {}
    for rows in (40, 41):
        path = tmp_path / f"kernel{rows}.py"
        path.write_text(OVERRUNS.replace("ROWS", str(rows)))
        kernel, base = KernelSpec.from_files(path, arch="sm_100a")
        (verdict,) = Verifier(SimDevice(), folder=tmp_path / "jobs").verify(kernel, [case], base=base).verdicts
        assert verdict.status == "failed"
        assert verdict.groups, "the numbers are judged"
        kinds[rows] = {finding.kind for finding in verdict.findings}
        for finding in verdict.findings:
            if finding.kind == "out-of-bounds":
                assert finding.text == "c[row, column + 64 * again] = cutlass.Float16(1.0)"
                assert " bytes after the end of C of group 0" in finding.message
                assert "and the same at 1 further instructions of this statement" in finding.message
        outside = [finding.message for finding in verdict.findings if finding.kind == "out-of-bounds"]
        assert len(outside) == (rows == 41), outside
    assert kinds == {40: {"mismatch"}, 41: {"mismatch", "out-of-bounds"}}


SCRATCH = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr


@cute.kernel
def add(c: cute.Tensor, scratch: cute.Tensor):
    column, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    unused = scratch[column + 128]
    c[row, column] = cutlass.Float16(scratch[column])


@cute.jit
def go(start: cute.Pointer, scratch: cute.Pointer):
    c = cute.make_tensor(start, cute.make_layout((40, 128), stride=(128, 1)))
    add(c, cute.make_tensor(scratch, cute.make_layout(256))).launch(grid=(40, 1, 1), block=(128, 1, 1))


def custom_kernel(data):
    abc, _, _, _ = data
    scratch = torch.empty(256, device="cuda")
    FILL
    place = cute.AddressSpace.gmem
    go(
        make_ptr(cutlass.Float16, abc[0][2].data_ptr(), place, assumed_align=16),
        make_ptr(cutlass.Float32, scratch.data_ptr(), place, assumed_align=16),
    )
    return [c for _, _, c in abc]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fill", "byte"),
    [
        ("pass", 0),
        ("scratch[::2] = 0.0", 4),
        ("scratch.view(16, 16)[:, :15].fill_(0.0)", 60),
        ("scratch[:128].zero_()", None),
        ("scratch[:128].copy_(torch.zeros(128))", None),
        ("scratch[0::2], scratch[1::2] = 0.0, torch.ones(128, device='cuda')", None),
    ],
)
def test_a_wrong_result_from_memory_that_nothing_wrote(tmp_path: Path, fill: str, byte: int | None) -> None:
    (verdict,) = verdicts(tmp_path, SCRATCH.replace("FILL", fill))
    found = [finding for finding in verdict.findings if finding.kind == "unwritten"]
    assert verdict.status == "failed"
    assert any(finding.kind == "mismatch" for finding in verdict.findings)
    assert len(found) == (byte is not None)
    for finding in found:
        assert finding is verdict.findings[0]
        assert finding.text == "c[row, column] = cutlass.Float16(scratch[column])"
        assert f"(made at kernel.py:24) at byte {byte}, which was never written" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize(("least", "named"), [(30000.0, 0), (-1.0, 1)])
def test_it_is_named_if_outputs_depend_on_it(tmp_path: Path, least: float, named: int) -> None:
    """Neither 0 nor the poison, a NaN, is more than 30000; 0 is more than -1."""
    use = f"cutlass.Float16(2.0) if scratch[column] > {least} else cutlass.Float16(1.0)"
    source = SCRATCH.replace("cutlass.Float16(scratch[column])", use).replace("FILL", "pass")
    (verdict,) = verdicts(tmp_path, source)
    assert [finding.kind for finding in verdict.findings].count("unwritten") == named
    assert any(finding.kind == "mismatch" for finding in verdict.findings)


def verdicts(folder: Path, source: str) -> Sequence[CaseVerdict]:
    path = folder / "kernel.py"
    path.write_text(source)
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256")), family="gpumode")
    return Verifier(SimDevice(), folder=folder / "jobs").verify(kernel, [case], base=base).verdicts


@pytest.mark.parametrize(("kind", "blocks"), [("lanes-rounding", 1), ("lanes-race", 6)])
def test_a_program_is_told_once_of_a_line_whose_sums_differ_by_rounding(
    kind: str, blocks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two launches of three instructions; each other kind of race is told with its instruction."""
    process = SimulatedProcess(tmp_path, Simulating())
    for sums in ("0.5 and 0.25", "-1e-05 and 2"):
        found = [
            Finding(kind, f"{opcode}: {sums} differ", where=Where("k", text=opcode, source=Location("k.py", 3)))
            for opcode in ("st.shared.b32", "st.shared.v2.f32", "st.global.b32")
        ]
        process._say(map(worker_finding, merge_by_statement(found)))
    said = capsys.readouterr().err
    assert said.count(f"k.py:3: simulated, {kind}: st.shared.b32: 0.5 and 0.25 differ") == 1
    assert said.count("simulated, ") == blocks
    assert ("and the same at 2 further instructions of this statement" in said) is (blocks == 1)

"""A kernel that does something wrong and goes on: the simulator's finding and the judgement of the result, both."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verify import Verifier
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

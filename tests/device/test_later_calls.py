"""A kernel whose later calls launch something else than its first: the races check simulates what is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.problem import parse_shape

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow

KERNEL = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr


@cute.kernel
def exchange(c: cute.Tensor, barrier: cutlass.Int32, constant: cutlass.Constexpr):
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    shared = cute.make_tensor(
        cute.arch.alloc_smem(cutlass.Float16, 128, alignment=16), cute.make_layout((128,), stride=(1,))
    )
    shared[lane] = cutlass.Float16(lane)
    if cutlass.const_expr(constant):
        if barrier > 0:
            cute.arch.sync_threads()
    c[row, lane] = shared[127 - lane]


@cute.jit
def go(start: cute.Pointer, barrier: cutlass.Int32, constant: cutlass.Constexpr):
    exchange(cute.make_tensor(start, cute.make_layout((3, 128), stride=(128, 1))), barrier, constant).launch(
        grid=(3, 1, 1), block=(128, 1, 1)
    )


CALLS = []


def custom_kernel(data):
    outputs = [c for _, _, c in data[0]]
    CALLS.append(torch.empty_like(outputs[0]))
    to = outputs[0] if len(CALLS) % 2 else CALLS[-1]
    for tensor in (to, outputs[0]):
        start = make_ptr(cutlass.Float16, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
        THEN
    return outputs
"""
LATER = {
    "another tensor": ("go(start, 1 + len(CALLS), True)", False),
    "another flag": ("go(start, int(len(CALLS) != 3), True)", True),
    "other code": ("go(start, 1, len(CALLS) < 4)", True),
}


@pytest.mark.parametrize("later", LATER)
def test_what_a_later_call_launches_is_checked(later: str, tmp_path: Path) -> None:
    then, races = LATER[later]
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL.replace("THEN", then))
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("3x128x64")), family="pow2_exact")
    (done,) = simulate(SimDevice(), kernel, [case], folder=tmp_path / "jobs", base=base, races=True)
    assert done.call is not None
    assert len(done.call.launches) == 2, "the call that is recorded is the first"
    if not races:
        assert (done.status, done.findings) == ("passed", ())
        return
    assert done.status == "failed"
    number = 2 if later == "another flag" else 3
    assert {"race"} <= {finding.kind for finding in done.errors} <= {"race", "uninitialised"}
    for finding in done.errors:
        assert f"in later call {number} on the same inputs, which launches exchange" in finding.message
        assert "shared" in str(finding.text)

"""Writers of outputs besides stores of CTAs to the given C: tensors of the kernel's own, copies and operators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import SimulationResult, simulate
from pytest_nvfp4.problem import parse_shape

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow

KERNEL = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr


@cute.kernel
def write(c: cute.Tensor, first: cutlass.Int32, shift: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    c[row + first, lane] = cutlass.Float16(lane)
    if shift > 0:
        c[(row + shift) % 3, lane] = cutlass.Float16(lane)


@cute.jit
def launch(start: cute.Pointer, first: cutlass.Int32, rows: cutlass.Int32, shift: cutlass.Int32):
    c = cute.make_tensor(start, cute.make_layout((3, 128), stride=(128, 1)))
    write(c, first, shift).launch(grid=(rows, 1, 1), block=(128, 1, 1))


CALLS, KEPT = [], []


def go(tensor, first=0, rows=3, shift=0):
    start = make_ptr(cutlass.Float16, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    launch(start, first, rows, shift)


def custom_kernel(data):
    c = data[0][0][2]
    CALLS.append(c)
    later = len(CALLS) == 3
    own = torch.empty_like(c)
    THEN
"""
ALL = 3 * 128


def simulated(then: str, folder: Path) -> SimulationResult:
    path = folder / "kernel.py"
    path.write_text(KERNEL.replace("THEN", then))
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("3x128x64")), family="pow2_exact")
    (done,) = simulate(SimDevice(), kernel, [case], folder=folder / "jobs", base=base, later_calls=True)
    return done


@pytest.mark.parametrize(
    ("then", "host", "ctas"),
    [
        ("go(own); return [own]", 0, 3),
        ("other = torch.empty_like(c); go(other); go(own); return [own]", 0, 3),
        ("go(own); go(own); return [own]", 0, 3),
        ("own = torch.zeros_like(c); go(own, rows=2); return [own]", 128, 2),
        ("go(own); c.copy_(own); return [c]", ALL, 0),
        ("go(own); c[1:] = own[1:]; go(c, rows=1); return [c]", 256, 1),
        ("go(own); return [own.clone()]", ALL, 0),
        ("c.zero_(); go(c); return [c]", 0, 3),
    ],
)
def test_who_writes(then: str, host: int, ctas: int, tmp_path: Path) -> None:
    done = simulated(then, tmp_path)
    assert (done.status, done.findings) == ("passed", ())
    assert done.call is not None
    assert done.call.unrecorded == 0
    (output,) = done.call.outputs
    assert (output.elements, output.never, output.host, output.ctas) == (ALL, 0, host, ctas)
    last = done.call.launches[-1]
    assert last.writers == (ctas or None)


@pytest.mark.parametrize(
    ("then", "kind", "text"),
    [
        (
            "go(own, rows=2); return [own]",
            "never-written",
            "128 of 384 elements .* the first: .*row 2",
        ),
        ("go(own, shift=1); return [own]", "written-by-two", "384 elements were written by two CTAs"),
        ("go(own, rows=1); c[1] = own[0]; return [c]", "never-written", "256 of 384"),
        ("go(own, rows=3 - later); return [own]", "never-written", "row 2.*in later call 2 on the same inputs"),
        ("go(own, rows=3 - later); c.copy_(own); return [c]", "", ""),
    ],
)
def test_what_is_not_written(then: str, kind: str, text: str, tmp_path: Path) -> None:
    done = simulated(then, tmp_path)
    assert [finding.kind for finding in done.errors] == [kind] * bool(kind), done.findings
    found = "".join(finding.message for finding in done.errors)
    assert re.search(text, found, re.DOTALL), found


@pytest.mark.parametrize(
    "then",
    [
        "own = torch.empty((4, 128, 1), dtype=c.dtype, device=c.device)[1:]; go(own); return [own]",
        "own = torch.empty(4 * 128, dtype=c.dtype, device=c.device)[:ALL].view(3, 128, 1); go(own); return [own]",
    ],
)
def test_a_part_of_another_tensor_is_not_recorded(then: str, tmp_path: Path) -> None:
    done = simulated(then.replace("ALL", str(ALL)), tmp_path)
    assert done.call is not None
    assert (done.status, done.call.outputs, done.call.unrecorded) == ("passed", (), 1)

"""Writers of outputs besides stores of CTAs to the given C: tensors of the kernel's own, copies and operators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_nvfp4.device.simulate import SimulationResult
from tests.device.row_writer import WRITE, simulated

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow

KERNEL = (
    WRITE
    + """

CALLS = []


def put(tensor, rows=3, shift=0):
    start = make_ptr(cutlass.Float16, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    go(start, 0, rows, shift)


def custom_kernel(data):
    c = data[0][0][2]
    CALLS.append(c)
    later = len(CALLS) == 3
    own = torch.empty_like(c)
    THEN
"""
)
ALL = 3 * 128


def called(then: str, folder: Path) -> SimulationResult:
    return simulated(KERNEL.replace("THEN", then), folder)


@pytest.mark.parametrize(
    ("then", "host", "ctas"),
    [
        ("put(own); return [own]", 0, 3),
        ("other = torch.empty_like(c); put(other); put(own); return [own]", 0, 3),
        ("put(own); put(own); return [own]", 0, 3),
        ("own = torch.zeros_like(c); put(own, rows=2); return [own]", 128, 2),
        ("put(own); c.copy_(own); return [c]", ALL, 0),
        ("put(own); c[1:] = own[1:]; put(c, rows=1); return [c]", 256, 1),
        ("put(own); return [own.clone()]", ALL, 0),
        ("put(own); return [own.float()]", ALL, 0),
        ("c.zero_(); put(c); return [c]", 0, 3),
    ],
)
def test_who_writes(then: str, host: int, ctas: int, tmp_path: Path) -> None:
    done = called(then, tmp_path)
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
            "put(own, rows=2); return [own]",
            "never-written",
            "128 of 384 elements .* the first: .*row 2",
        ),
        ("put(own, shift=1); return [own]", "written-by-two", "384 elements were written by two CTAs"),
        ("put(own, rows=1); c[1] = own[0]; return [c]", "never-written", "256 of 384"),
        ("put(own, rows=3 - later); return [own]", "never-written", "row 2.*in later call 2 on the same inputs"),
        ("put(own, rows=3 - later); c.copy_(own); return [c]", "", ""),
    ],
)
def test_what_is_not_written(then: str, kind: str, text: str, tmp_path: Path) -> None:
    done = called(then, tmp_path)
    assert [finding.kind for finding in done.errors] == [kind] * bool(kind), done.findings
    found = "".join(finding.message for finding in done.errors)
    assert re.search(text, found, re.DOTALL), found


@pytest.mark.parametrize(
    "then",
    [
        "own = torch.empty((4, 128, 1), dtype=c.dtype, device=c.device)[1:]; put(own); return [own]",
        "own = torch.empty(4 * 128, dtype=c.dtype, device=c.device)[:ALL].view(3, 128, 1); put(own); return [own]",
    ],
)
def test_a_part_of_another_tensor_is_not_recorded(then: str, tmp_path: Path) -> None:
    done = called(then.replace("ALL", str(ALL)), tmp_path)
    assert done.call is not None
    assert (done.status, done.call.outputs, done.call.unrecorded) == ("passed", (), 1)

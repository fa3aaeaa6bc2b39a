"""A kernel whose later calls launch something else than its first: what is new is simulated and checked, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.device.row_writer import HEAD, WRITE, simulated

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow

KERNEL = (
    HEAD
    + """

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


def pointer(tensor):
    return make_ptr(cutlass.Float16, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)


def custom_kernel(data):
    outputs = [c for _, _, c in data[0]]
    CALLS.append(torch.empty_like(outputs[0]))
    to = outputs[0] if len(CALLS) % 2 else CALLS[-1]
    for start in map(pointer, (to, outputs[0])):
        THEN
    return outputs


def compared(c):
    go(pointer(c), 1, True)
    assert c[0, :, 0].tolist() == list(range(127, -1, -1))
    go(pointer(c), int(len(CALLS) != 3), True)
"""
)
LATER = {
    "another tensor": ("go(start, 1 + len(CALLS), True)", False),
    "another flag": ("go(start, int(len(CALLS) != 3), True)", True),
    "other code": ("go(start, 1, len(CALLS) < 4)", True),
}


WRITES = (
    WRITE
    + """

CALLS = []


def custom_kernel(data):
    c = data[0][0][2]
    CALLS.append(c)
    start = make_ptr(cutlass.Float16, c.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    later = len(CALLS) == 3
    THEN
    return [c]
"""
)
COVERING = {
    "the same": ("go(start, 0, 2 + later - later, 0); go(start, 2, 1, 0)", "", ""),
    "a row less": ("go(start, 0, 3 - later, 0)", "never-written", "128 of 384 elements .* row 2"),
    "a row twice": ("go(start, 0, 3, int(later))", "written-by-two", "which launches write unlike the calls before it"),
    "a launch less": (
        "go(start, 0, 2, 0); later or go(start, 2, 1, 0)",
        "never-written",
        "which launches write in another number or order than the calls before it",
    ),
    "nothing": ("later or go(start, 0, 3, 0)", "never-written", "which launches no kernel in another number"),
    "a row twice if the launch was executed": (
        "go(start, 0, 3, 0); go(start, 0, 3, int(later and c[2, 5, 0].item() == 5))",
        "written-by-two",
        "in later call 2 on the same inputs",
    ),
}
"""What a kernel does, the kind of the finding and a pattern in its message."""


@pytest.mark.parametrize("later", COVERING)
def test_what_a_later_call_writes_is_checked(later: str, tmp_path: Path) -> None:
    then, kind, message = COVERING[later]
    done = simulated(WRITES.replace("THEN", then), tmp_path)
    assert [finding.kind for finding in done.errors] == [kind] * bool(kind), done.findings
    assert re.search(message, "".join(finding.message for finding in done.errors), re.DOTALL)


def test_a_later_call_is_checked_behind_an_error_that_ends_no_call(tmp_path: Path) -> None:
    """It may be accepted, and must not hide what comes later."""
    done = simulated(WRITES.replace("THEN", "go(start, 0, 3 - later, int(not later))"), tmp_path)
    assert [finding.kind for finding in done.errors] == ["written-by-two", "never-written"]
    assert "in later call 2 on the same inputs" in done.errors[1].message


def test_a_later_call_is_checked_behind_the_kernels_own_assertions(tmp_path: Path) -> None:
    text = KERNEL.replace("THEN", "pass").replace("    return outputs", "    compared(outputs[0])\n    return outputs")
    done = simulated(text, tmp_path, races=True)
    assert done.call is not None
    assert len(done.call.launches) == 2
    assert done.errors, "the launch without a barrier comes after an assertion on what the first launch wrote"
    assert all("in later call 2 on the same inputs, which launches exchange" in one.message for one in done.errors)


@pytest.mark.parametrize("later", LATER)
def test_what_a_later_call_launches_is_checked(later: str, tmp_path: Path) -> None:
    then, races = LATER[later]
    done = simulated(KERNEL.replace("THEN", then), tmp_path, races=True)
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

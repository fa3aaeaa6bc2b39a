"""Lines of a kernel's instructions, and the registers whose names its source shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.sim.debug.errors import CommandError
from pytest_nvfp4.sim.debug.source import Lines, author_names
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Kernel
from tests.sim.ptx_case import kernel_text

SOURCE = """\
def kernel():
    tx, _, tz = thread_idx()
    half = tx // 2
    pair = make(tx)
    a = b = half
    breakpoint()

    store(half, pair)


def other():
    return 1
"""
BODY = """
.loc 1 2 5
mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
.loc 1 3 5
add.u32 %r4, %r1, 0; shr.u32 %r5, %r4, 1;
.loc 1 4 5
add.u32 %r6, %r1, 1; add.u32 %r7, %r1, 2;
.loc 1 8 5
st.shared.u32 [%r5], %r6; st.shared.u32 [%r3], %r7;
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    file = tmp_path / "named.py"
    file.write_text(SOURCE)
    text = kernel_text(BODY, buffers=0).replace(".address_size 64", f'.address_size 64\n.file 1 "{file}"')
    return parse(text).kernels["kernel"]


def test_a_name_is_known_where_one_register_leaves_its_statement(kernel: Kernel) -> None:
    """Both registers of `pair` leave it, so that none is known as it; the first of `half` is used by it alone."""
    names = {kernel.registers[slot].name: name for slot, name in author_names(kernel).items()}
    assert names == {"%r1": "tx", "%r3": "tz", "%r5": "half"}


def test_a_line_without_instructions_is_what_runs_next_in_its_block(kernel: Kernel) -> None:
    lines = Lines(kernel)
    assert str(lines.at("named.py:3")[0]) == "named.py:3"
    assert lines.at("5")[1] == lines.at("named.py:8")[1]
    (entry,) = lines.at("3")[1]
    assert kernel.instructions[entry].text.startswith("add.u32 %r4")


@pytest.mark.parametrize(("place", "words"), [("named.py:9", "or from a later line"), ("x.py:3", "files are named.py")])
def test_a_place_that_is_not_there_is_refused(kernel: Kernel, place: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        Lines(kernel).at(place)


def test_calls_of_breakpoint_are_places(kernel: Kernel) -> None:
    assert Lines(kernel).breakpoints() == ["named.py:6"]


def test_a_line_before_a_branch_is_entered_on_both_ways(tmp_path: Path) -> None:
    """Neither way has an instruction of the line itself; a line in a block is not entered by what skips the block."""
    file = tmp_path / "ways.py"
    file.write_text("def kernel():\n    a()\n    breakpoint()\n    if b:\n        pass\n        c()\n    d()\n")
    body = """
    .loc 1 2 5
    setp.eq.u32 %p1, %r1, 0; @%p1 bra SKIP;
    .loc 1 6 9
    add.u32 %r2, %r1, 0;
    SKIP:
    .loc 1 7 5
    add.u32 %r3, %r1, 0;
    """
    text = kernel_text(body, buffers=0).replace(".address_size 64", f'.address_size 64\n.file 1 "{file}"')
    made = parse(text).kernels["kernel"]
    entered = {line: {made.instructions[at].text[:11] for at in Lines(made).at(line)[1]} for line in ("3", "5", "7")}
    assert entered == {"3": {"add.u32 %r2", "add.u32 %r3"}, "5": {"add.u32 %r2"}, "7": {"add.u32 %r3"}}

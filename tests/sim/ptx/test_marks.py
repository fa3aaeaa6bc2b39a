"""Marks: what is one, what is none, and which stores are IKET's own."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.marks import Mark, Marks, marks_of
from pytest_nvfp4.sim.ptx.parser import parse
from tests.sim.marked import iket, iket_globals, region
from tests.sim.ptx_case import kernel_text, run_ptx

EVENTS = {1: (4, "whole"), 2: (0, "here"), 3: (1, "inner/x")}


def marks(body: str, globals_: str = "") -> Marks:
    module = parse(kernel_text(body, buffers=0, globals_=globals_))
    return marks_of(module, module.kernels["kernel"])


def test_regions_are_marks_and_other_registers_are_not() -> None:
    body = region("begin", "k tile ü") + region("end", "k tile ü") + region("mark", "m") + "mov.b32 %r1, 0;"
    assert list(marks(body).at.values()) == [Mark("begin", "k tile ü"), Mark("end", "k tile ü"), Mark("mark", "m")]
    assert not marks("{ .reg .b32 nvfp4_begin_0; mov.b32 nvfp4_begin_0, 0; }").at


def test_events_of_iket_have_the_names_of_their_declarations() -> None:
    found = marks(iket(1) + iket(3) + iket(2, "%r1") + iket(31) + iket(1), iket_globals(EVENTS))
    whole = Mark("toggle", "whole")
    assert list(found.at.values()) == [whole, Mark("begin", "inner/x"), Mark("mark", "here"), Mark("end", ""), whole]
    assert len(found.skipped) == 6


def test_without_declarations_the_same_instructions_are_no_marks() -> None:
    found = marks(iket(1))
    assert not found.at
    assert not found.skipped
    with pytest.raises(Fault, match="shared memory"):
        run_ptx(iket(1), shared=1024)


def test_iket_runs_and_other_stores_beside_it_count() -> None:
    own = "mov.u32 %r1, smem; st.weak.shared.u32 [%r1], 7; ld.shared.u32 %r2, [%r1]; st.global.u32 [%rd100], %r2;"
    done = run_ptx(
        own + iket(1) + own + iket(1),
        buffers={"out": np.zeros(1, np.uint32)},
        shared=1024,
        globals_=iket_globals(EVENTS),
    )
    assert done["out"][0] == 7

"""Updates in place by replicated threads: a load is an access of those threads alone that can use its value."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.races.users import part_of
from tests.sim.races.programs import finding_kinds

THREADS = 128
START = "mov.u32 %r42, %tid.x;"
EACH = "and.b32 %r43, %r42, {size}; mul.wide.u32 %rd41, %r43, 4; add.u64 %rd42, %rd100, %rd41;"
LOAD, ADD, STORE = "ld.global.b32 %r45, [%rd42];", "add.s32 %r46, %r45, 1;", "@%p41 st.global.b32 [%rd42], %r46;"
FIRST = "and.b32 %r44, %r42, {others}; setp.eq.b32 %p41, %r44, 0;"
"""The guard of the one thread of those that load an element that stores it."""


def found(body: str, *, values: tuple[int, ...] = (), grid: int = 1) -> list[str]:
    buffers = {"x": np.zeros(THREADS, np.uint32), "y": np.zeros(THREADS, np.uint32)}
    return finding_kinds(
        START + body, block=(THREADS, 1, 1), grid=(grid, 1, 1), buffers=buffers, values=values, as_it_is=True
    )


def update(elements: int, *, more: str = "", guard: str = "") -> str:
    of = EACH.format(size=elements - 1)
    only = guard or FIRST.format(others=(THREADS - 1) & ~(elements - 1))
    return of + LOAD + ADD + only + more + STORE


@pytest.mark.parametrize("elements", [1, 4, 16, 32, 64])
def test_replicas_that_store_nothing_do_not_race(elements: int) -> None:
    assert found(update(elements)) == []


@pytest.mark.parametrize("elements", [1, 16, 32, 64])
def test_a_value_that_replicas_use_races(elements: int) -> None:
    elsewhere = "mul.wide.u32 %rd45, %r42, 4; add.u64 %rd45, %rd101, %rd45; st.global.b32 [%rd45], %r46;"
    assert set(found(update(elements, more=elsewhere))) == {"race"}
    assert set(found(update(elements) + elsewhere)) == {"race"}
    assert set(found(update(elements, more="setp.eq.u32 %p45, %r45, 7; @%p45 bra DONE;") + "\nDONE:")) == {"race"}
    exchange = "shfl.sync.idx.b32 %r46, %r45, 0, 31, 0xffffffff;"
    assert set(found(update(elements, more=exchange + elsewhere))) == {"race"}


def test_another_cta_that_updates_the_same_races() -> None:
    assert set(found(update(1), grid=2)) == {"race"}


def test_replicas_that_all_store_what_they_loaded_race() -> None:
    assert set(found(update(32, guard="setp.ge.u32 %p41, %r42, 0;"))) == {"race"}


@pytest.mark.parametrize(
    ("guard", "races"),
    [
        # A mask of the kernel's own beside the guard of the first thread: of a value, or of a parameter.
        ("setp.eq.b32 %p42, %r42, 0; setp.lt.s32 %p43, %r45, %r300; and.pred %p41, %p42, %p43;", False),
        ("setp.lt.s32 %p43, %r45, 9; and.pred %p41, %p43, %p42;", True),
        (
            "setp.ne.b32 %p42, %r42, 0; setp.lt.s32 %p43, %r300, 0; or.pred %p44, %p42, %p43; not.pred %p41, %p44;",
            False,
        ),
        ("setp.ne.b32 %p42, %r42, 0; xor.pred %p41, %p42, 1;", False),
        ("setp.eq.b32 %p42, %r42, 0; setp.lt.s32 %p43, %r300, 0; or.pred %p41, %p42, %p43;", True),
        (
            "shr.u32 %r47, %r42, 1; shl.b32 %r48, %r47, 2; mad.lo.s32 %r48, %r48, 2, %r47; setp.lt.u32 %p41, %r48, 1;",
            True,
        ),
        ("add.s32 %r47, %r42, -1; setp.lt.s32 %p41, %r47, 0;", False),
        ("add.s32 %r47, %r42, -2; setp.lt.s32 %p41, %r47, 0;", True),
        ("mov.b32 %r47, 0; mov.b32 %r47, %r42; setp.eq.b32 %p41, %r47, 0;", True),  # written twice
        ("setp.eq.b32 %p41|%p42, %r42, 0;", True),
    ],
)
def test_guards(guard: str, races: bool) -> None:
    # %p42 of the second guard is not known to be false: it follows from a parameter.
    first = "setp.eq.s32 %p42, %r300, 5;" if guard.startswith("setp.lt.s32 %p43, %r45, 9") else ""
    assert found(update(1, guard=first + guard), values=(5,)) == (["race"] if races else [])


def test_a_negated_guard() -> None:
    body = update(1, guard="setp.ne.b32 %p41, %r42, 0;")
    assert found(body.replace("@%p41", "@!%p41")) == []
    assert set(found(body)) == {"race"}


def test_part_of_a_pattern() -> None:
    whole = Pattern(np.array([64, 0, 32, 96], np.uint64), 0b10111, 4)
    distance, part = part_of(whole, 0b10100)
    assert (distance, part.mask, part.offsets.tolist(), part.size) == (32, 0b10100, [0, 64], 4)
    assert part_of(whole, 0b10)[0] == 0

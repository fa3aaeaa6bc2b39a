"""Random programs with an unwritten word: where their outputs depend on its value, there is a finding."""

from __future__ import annotations

from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.ptx_case import run_ptx

# r2 of lanes 16 to 31 is the word that nothing has written, unless {word} is; r20 to r23 and p1 to p3 are defined.
START = """
mov.u32 %r0, %tid.x; mov.u32 %r4, smem; shl.b32 %r3, %r0, 2; add.u32 %r1, %r4, %r3; xor.b32 %r6, %r1, 64;
mul.wide.u32 %rd1, %r0, 4; add.u64 %rd3, %rd100, %rd1; mov.b32 %r9, 0; mov.b32 %r8, {word};
setp.lt.u32 %p9, %r0, 16; @%p9 mov.b32 %r8, 8; setp.lt.u32 %p9, %r0, {written}; @%p9 st.shared.b32 [%r1], %r8;
bar.sync 0;
add.u32 %r20, %r0, 3; mov.b32 %r21, 7; mul.lo.u32 %r22, %r0, 5; mov.b32 %r23, 0;
setp.lt.u32 %p1, %r0, 16; setp.lt.u32 %p2, %r20, 9; setp.ge.u32 %p3, %r22, 200;
"""
LOAD = "ld.shared.b32 %r2, [%r1];\n"
registers = st.sampled_from(["%r2", "%r20", "%r21", "%r22", "%r23"])
predicates = st.sampled_from(["%p1", "%p2", "%p3"])
guards = st.one_of(st.just(""), predicates.map("@{} ".format), predicates.map("@!{} ".format))


@st.composite
def plain(draw: st.DrawFn) -> str:
    """An instruction that lanes may execute apart."""
    guard, into, first, second = draw(guards), draw(registers), draw(registers), draw(registers)
    kind = draw(st.sampled_from(["add.u32", "xor.b32", "min.u32", "mov.b32", "setp", "selp", "and.pred"]))
    if kind == "setp":
        return f"{guard}setp.lt.u32 {draw(predicates)}, {first}, {draw(st.integers(0, 40))};"
    if kind == "selp":
        return f"{guard}selp.b32 {into}, {first}, {second}, {draw(predicates)};"
    if kind == "and.pred":
        return f"{guard}and.pred {draw(predicates)}, {draw(predicates)}, {draw(predicates)};"
    return f"{guard}{kind} {into}, {first}{'' if kind == 'mov.b32' else ', ' + second};"


@st.composite
def together(draw: st.DrawFn) -> str:
    """Instructions that all lanes execute together: an exchange, by shared memory or not, or the end of a block."""
    into, value = draw(registers), draw(registers)
    return draw(
        st.sampled_from(
            [
                f"shfl.sync.bfly.b32 {into}, {value}, {draw(st.sampled_from([1, 8, 16]))}, 31, -1;",
                f"st.shared.b32 [%r1+1024], {value}; bar.sync 0; ld.shared.b32 {into}, [%r6+1024]; bar.sync 0;",
                f"st.shared.v2.b32 [%r5+2048], {{{value}, {into}}}; ld.shared.b32 {into}, [%r5+2052];",
                "bar.sync 0;",
                f"redux.sync.or.b32 {into}, {value}, -1;",
            ]
        )
    )


@st.composite
def programs(draw: st.DrawFn) -> str:
    labels = count()
    body = ["add.u32 %r5, %r1, %r3;", LOAD]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["plain", "plain", "together", "skip", "load"]))
        if kind == "skip":
            label = f"L{next(labels)}"
            inside = " ".join(draw(st.lists(plain(), min_size=1, max_size=3)))
            body.append(f"{draw(guards.filter(bool))}bra {label}; {inside} {label}: bar.warp.sync -1;")
        else:
            body.append(draw({"plain": plain(), "together": together(), "load": st.just(LOAD)}[kind]))
    looped = draw(st.booleans())
    if looped:
        body = ["AGAIN:", *body, "add.u32 %r9, %r9, 1; setp.lt.u32 %p8, %r9, 2; @%p8 bra AGAIN;"]
    return "\n".join([*body, f"{draw(guards)}st.global.b32 [%rd3], {draw(registers)};"])


def outputs(program: str, *, written: int, word: int = 0) -> tuple[np.ndarray, int]:
    text = START.format(written=written, word=word) + program
    ran = run_ptx(text, buffers={"out": np.full(32, 99, np.uint32)}, shared=4096)
    return ran["out"], sum(finding.kind == "uninitialised" for finding in ran.grid.findings)


@given(programs())
def test_outputs_that_depend_on_the_word_have_a_finding(program: str) -> None:
    results = []
    for word in (0, 5, 38, 0xFFFF_FFFF):
        out, found = outputs(program, written=32, word=word)
        assert not found
        results.append(out)
    if any((out != results[0]).any() for out in results):
        assert outputs(program, written=16)[1]

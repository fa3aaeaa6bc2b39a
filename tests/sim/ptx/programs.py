"""Random small kernels, with what they mean kept beside the text: the oracles of flow and liveness know only that."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Kernel

from .samples import HEAD

REGISTERS = 6
"""Slots 0 and 1 are predicates, 2 to 5 have 32 bits."""
END = "end"


@dataclass
class Step:
    """One instruction: its text, what it surely reads and surely overwrites, and where it may go (END: it ends)."""

    text: str
    reads: set[int] = field(default_factory=set)
    kills: set[int] = field(default_factory=set)
    goes: set[int | str] = field(default_factory=set)


@dataclass
class Program:
    """Instructions whose index is their place; label ``L3`` stands before the third, ``L<n>`` after the last."""

    steps: list[Step]

    def kernel(self) -> Kernel:
        """The kernel, parsed."""
        lines = [f"L{index}: {step.text}" for index, step in enumerate(self.steps)]
        text = f"{HEAD}.extern .func fail () .noreturn;\n.extern .func back ();\n.entry k() {{\n"
        text += ".reg .pred %p<2>; .reg .b32 %r<4>;\n" + "\n".join(lines) + f"\nL{len(lines)}:\n}}\n"
        return parse(text).kernels["k"]

    def following(self, index: int) -> set[int | str]:
        """Where a step may go; behind the last one is the end."""
        return {END if place == len(self.steps) else place for place in self.steps[index].goes}

    def can_reach(self, start: int | str, goal: int | str) -> bool:
        """Whether there is a way."""
        seen: set[int | str] = set()
        work = [start]
        while work:
            place = work.pop()
            if place in seen:
                continue
            if place == goal:
                return True
            seen.add(place)
            if place != END:
                work.extend(self.following(place))
        return False


def name(slot: int) -> str:
    """Of a register."""
    return f"%p{slot}" if slot < 2 else f"%r{slot - 2}"


@st.composite
def programs(draw: st.DrawFn, *, endless: bool = True) -> Program:
    """Programs of up to 14 instructions. Without ``endless`` each ends in ``ret`` (which it may not reach)."""
    count = draw(st.integers(1, 14))
    word = st.integers(2, REGISTERS - 1)
    predicate = st.integers(0, 1)
    target = st.integers(0, count)
    steps = []
    for index in range(count):
        step = Step("")
        kind = draw(
            st.sampled_from(
                [
                    "add",
                    "mov",
                    "setp",
                    "st",
                    "ld",
                    "new",
                    "wgmma",
                    "bra",
                    "bra",
                    "bra",
                    "brx",
                    "ret",
                    "trap",
                    "fail",
                    "back",
                ]
            )
        )
        if not endless and index == count - 1:
            kind = "ret"
        a, b, c = draw(word), draw(word), draw(word)
        p = draw(predicate)
        results: set[int] = set()
        onward = True
        if kind == "add":
            step.text, step.reads, results = f"add.s32 {name(a)}, {name(b)}, {name(c)}", {b, c}, {a}
        elif kind == "mov":
            step.text, results = f"mov.b32 {name(a)}, 5", {a}
        elif kind == "setp":
            step.text, step.reads, results = f"setp.eq.s32 {name(p)}|_, {name(b)}, {name(c)}", {b, c}, {p}
        elif kind == "st":
            step.text, step.reads = f"st.shared.v2.b32 [{name(a)}], {{{name(b)}, {name(c)}}}", {a, b, c}
        elif kind == "ld":
            step.text, step.reads, results = f"ld.shared.v2.b32 {{{name(a)}, _}}, [{name(b)}]", {b}, {a}
        elif kind == "new":
            # An opcode without a rule: it may read all and write none.
            step.text, step.reads = f"unheard.of {name(a)}, {{{name(b)}}}, [{name(c)}], {name(p)}", {a, b, c, p}
        elif kind == "wgmma":
            step.text = f"wgmma.mma_async.x {{{name(a)}, {name(b)}}}, {name(c)}, {name(p)}"
            step.reads, results = {a, b, c, p}, {a, b}
        elif kind == "bra":
            place = draw(target)
            step.text, step.goes, onward = f"bra L{place}", {place}, False
        elif kind == "brx":
            places = draw(st.lists(target, min_size=1, max_size=3))
            listed = ", ".join(f"L{place}" for place in places)
            step.text = f"T{index}: .branchtargets {listed}; brx.idx {name(a)}, T{index}"
            step.reads, step.goes, onward = {a}, set(places), False
        elif kind == "ret":
            step.text, step.goes, onward = draw(st.sampled_from(["ret", "exit"])), {count}, False
        elif kind == "back":
            step.text = "call back, ()"
        else:
            step.text, onward = "trap" if kind == "trap" else "call.uni fail, ()", False
        if draw(st.booleans()):
            guard = draw(predicate)
            listing, _, body = step.text.rpartition("; ")
            step.text = f"{listing}{'; ' if listing else ''}@{draw(st.sampled_from(['', '!']))}{name(guard)} {body}"
            step.reads = step.reads | {guard} | results
            onward = True
        else:
            step.kills = results
        if onward:
            step.goes = step.goes | {index + 1}
        step.text += ";"
        steps.append(step)
    return Program(steps)

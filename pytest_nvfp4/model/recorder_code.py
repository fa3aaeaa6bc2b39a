"""What a kernel's instructions mean for a recording: classes, registers of loads, and what a model cannot follow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pytest_nvfp4.model.recorder_polls import polls_of
from pytest_nvfp4.model.recording import INSTRUCTION_CLASSES
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.ptx.roles import results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.source import place_of

Mix = tuple[int, ...]
"""Numbers of instructions, one an item of ``INSTRUCTION_CLASSES``; the last, of passes, is 0."""

_CLASS = {name: number for number, name in enumerate(INSTRUCTION_CLASSES)}
NOTHING: Mix = (0,) * len(INSTRUCTION_CLASSES)
_FLOATING = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"})
_MULTIPLIES = frozenset({"fma", "mad", "mul", "add", "sub", "min", "max"})
_SPECIAL = frozenset({"cos", "div", "ex2", "lg2", "rcp", "rsqrt", "sin", "sqrt", "tanh"})
_MOVES = frozenset({"mov", "cvta", "prmt", "shfl", "mapa", "getctarank", "movmatrix"})
_BRANCHES = frozenset({"bra", "brx", "call", "exit", "ret"})
_ALU = frozenset(
    [
        "abs",
        "add",
        "addc",
        "and",
        "bfe",
        "bfi",
        "bfind",
        "bmsk",
        "brev",
        "clz",
        "cnot",
        "copysign",
        "dp2a",
        "dp4a",
        "fns",
        "isspacep",
        "lop3",
        "mad",
        "mad24",
        "madc",
        "max",
        "min",
        "mul",
        "mul24",
        "neg",
        "not",
        "or",
        "popc",
        "rem",
        "sad",
        "selp",
        "set",
        "setp",
        "shf",
        "shl",
        "shr",
        "slct",
        "sub",
        "subc",
        "szext",
        "testp",
        "xor",
    ]
)
_SHARED = frozenset({"shared", "shared::cta", "shared::cluster"})
_ORDERED = frozenset({"volatile", "relaxed", "acquire", "mmio"})
_WORDS = frozenset({"b32", "u32", "s32", "b64", "u64", "s64"})
_VECTORS = frozenset({"v2", "v4", "v8"})
_OWN = frozenset({"shared", "shared::cta", "shared::cluster", "local", "param"})


def class_of(ins: Instruction) -> str:
    """Return the class of an instruction, one of ``INSTRUCTION_CLASSES`` but the last."""
    root = ins.root
    shared = not _SHARED.isdisjoint(ins.parts)
    if root in ("ld", "ldmatrix"):
        return "shared_load" if shared or root == "ldmatrix" else "other"
    if root in ("st", "stmatrix"):
        return "shared_store" if shared or root == "stmatrix" else "other"
    if root in _BRANCHES:
        return "branch"
    if root == "cvt":
        return "convert"
    if root in _SPECIAL:
        return "special"
    if root in _MOVES:
        return "move"
    if root == "fma" or (root in _MULTIPLIES and not _FLOATING.isdisjoint(ins.parts)):
        return "fma"
    return "alu" if root in _ALU else "other"


class Executed:
    """A block with the regions that were entered, executed once.

    Attributes:
        instructions: Indices, ascending.
    """

    def __init__(self, code: Code, instructions: Sequence[int]) -> None:
        self.instructions = sorted(instructions)
        counts = np.zeros((len(self.instructions) + 1, len(INSTRUCTION_CLASSES)), np.int64)
        for place, at in enumerate(self.instructions):
            counts[place + 1, code.classes[at]] = 1
        self._sums = counts.cumsum(axis=0)
        self._between: dict[tuple[int, int], Mix] = {}
        self.own = [at for at in self.instructions if at in code.own]
        """Instructions without an event of the simulator, which are operations."""

    def after(self, at: int) -> int:
        """Return the place behind an instruction, -1 if it is not one of these."""
        place = bisect_right(self.instructions, at)
        return place if place and self.instructions[place - 1] == at else -1

    def between(self, first: int, end: int) -> Mix:
        """Return the mix of the instructions at places from ``first`` to before ``end``."""
        found = self._between.get((first, end))
        if found is None:
            found = self._between[first, end] = tuple((self._sums[end] - self._sums[first]).tolist())
        return found


class Code:
    """The instructions of a kernel, and what its compiled blocks execute.

    Attributes:
        classes: By instruction, the number of its class.
        own: Operations without an event: ``mma.sync`` and ``griddepcontrol.launch_dependents``.
        loads: By instruction, the slots that a load of global or of a peer's memory writes.
        polls: Loads that poll a flag, by instruction.
        flag_writes: Kinds of the instructions that may write a flag, by instruction, if there are polls.
        refusing: By instruction, why a launch that executes it has no model.
        marks: What the author named; ``marked`` has its number by instruction.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.instructions = program.kernel.instructions
        self.classes = [_CLASS[class_of(ins)] for ins in self.instructions]
        self.own = {ins.index for ins in self.instructions if ins.root == "mma" or ins.has("launch_dependents")}
        self.loads = {
            ins.index: frozenset(register.slot for register in results(ins))
            for ins in self.instructions
            if ins.root in ("ld", "atom") and (_SHARED.isdisjoint(ins.parts) or ins.has("shared::cluster"))
        }
        self.polls = polls_of(program, [ins for ins in self.instructions if _is_ordered_load(ins)])
        self.flag_writes = {ins.index: kind for ins in self.instructions if self.polls and (kind := _written(ins))}
        self.refusing = {ins.index: why for ins in self.instructions if (why := self._refusal(ins))}
        self.marks = tuple(dict.fromkeys(program.marks.values()))
        numbers = {mark: number for number, mark in enumerate(self.marks)}
        self.marked = {at: numbers[mark] for at, mark in program.marks.items()}
        self._executed: dict[tuple[int, ...], Executed] = {}

    @cached_property
    def touches(self) -> list[frozenset[int]]:
        """By instruction, the slots that it reads or writes."""
        return [frozenset(register.slot for register in (*sources(ins), *results(ins))) for ins in self.instructions]

    @cached_property
    def _read(self) -> frozenset[int]:
        return frozenset(register.slot for ins in self.instructions for register in sources(ins))

    def executed(self, passages: tuple[int, ...]) -> Executed:
        """Return what the passages of a block and of its regions execute, by number."""
        found = self._executed.get(passages)
        if found is None:
            parts = [at for number in passages for at in self.program.passages[number].instructions]
            found = self._executed[passages] = Executed(self, parts)
        return found

    def _refusal(self, ins: Instruction) -> str:
        """Return why control flow behind an instruction may depend on the order of CTAs or warps; else nothing."""
        where = f"{place_of(ins)} ({ins.opcode})"
        if ins.root == "clusterlaunchcontrol" and ins.has("try_cancel"):
            return f"{where} takes over the work of clusters that have not started, so that the work depends on times"
        if ins.root == "atom" and any(register.slot in self._read for register in results(ins)):
            return f"{where} uses the result of an atomic operation, which depends on the order of the warps"
        if _is_ordered_load(ins) and ins.index not in self.polls:
            return f"{where} reads what other CTAs may write meanwhile, so that what follows depends on times"
        return ""


def _is_ordered_load(ins: Instruction) -> bool:
    return ins.root == "ld" and not _ORDERED.isdisjoint(ins.parts) and _OWN.isdisjoint(ins.parts)


def _written(ins: Instruction) -> str:
    """Return the kind of a write of a flag (``flags.WRITE_KINDS``); nothing for other instructions."""
    if ins.parts[-1] not in _WORDS or not _OWN.isdisjoint(ins.parts) or any(part in _VECTORS for part in ins.parts):
        return ""
    if ins.root == "st" and not _ORDERED.union(("release",)).isdisjoint(ins.parts):
        return f"st.b{ins.parts[-1][1:]}"
    return f"add.b{ins.parts[-1][1:]}" if ins.root in ("atom", "red") and ins.has("add") else ""

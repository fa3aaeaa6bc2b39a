"""Compiler of the instructions that a gang of warps executes in lockstep, and of where it pays off (``run.gang``).

The lowerings of opcodes know no gangs. What they emit for arithmetic works on arrays of any length; an instruction
whose lines need the warp is executed warp by warp if it is an access to memory in ``_BY_WARP``, and else ends the gang.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lower import registers
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.lower.table import computing
from pytest_nvfp4.sim.memory.gang_read import read_global_together
from pytest_nvfp4.sim.memory.load import load_parameter, load_parameter_signed
from pytest_nvfp4.sim.memory.read import read_global, read_shared
from pytest_nvfp4.sim.memory.write import WRITERS
from pytest_nvfp4.sim.ptx.roles import is_strong, products, results, sources
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Label, Operand, Register, Special, Vector
from pytest_nvfp4.sim.run.gang import Gang, each, merge

if TYPE_CHECKING:
    from pytest_nvfp4.sim.lower.compiler import Program


@dataclass(frozen=True, slots=True)
class GangBlock:
    """A compiled block of a gang.

    Attributes:
        run: The function of the registers, the gang and its mask, which returns the next place; see ``Program``.
        reads: Slots that it reads before it writes them, with their bits.
        writes: Slots that it writes.
    """

    run: Callable[[list[Any], Gang, int], int]
    reads: tuple[tuple[int, int], ...]
    writes: tuple[int, ...]


_BY_WARP = frozenset({read_shared, *WRITERS.values()})
_PARAMETERS = frozenset({load_parameter, load_parameter_signed})
_COSTLY = frozenset({"fma", "mad", "mul", "add", "sub", "cvt", "min", "max", "ex2", "rcp", "rsqrt", "sqrt", "tanh"})
_REAL = frozenset({"f16", "f32", "f64", "bf16", "f16x2", "bf16x2", "f32x2"})
_LOOP, _STRAIGHT = 1, 24
"""Fewest costly instructions of a loop, and of a straight run, for which warps become a gang."""
_APART = frozenset({"call", "tcgen05"})
"""Roots of opcodes of kernels whose warps form no gangs: their time goes elsewhere, and their warps have roles."""
_WARP = re.compile(r"\bw\b|\blane_")


class _GangEmitter(Emitter):
    """Emitter of a block of a gang, which its code calls ``G``."""

    def call(self, function: Callable[..., Any], *arguments: str) -> str:
        if arguments[:1] == ("w",):
            if function in _PARAMETERS:
                return super().call(function, "G.first", *arguments[1:])
            if function is read_global:
                return super().call(read_global_together, "G", *arguments[1:])
            if function in _BY_WARP:
                mask, *values = arguments[1:]
                bits = next((str(access.register) for access in map(self._access, values) if access is not None), "0")
                return super().call(each, "G", mask, self.constant(function), bits, *values)
        return super().call(function, *arguments)

    def _access(self, name: str) -> Any:
        value = self.globals.get(name)
        return value if hasattr(value, "register") else None

    def constant(self, value: Any, hint: str = "k") -> str:
        if isinstance(value, np.ndarray) and value.shape == (32,) and (value == value[0]).all():
            value = value[0]  # the literal of an expression, which a numpy scalar is for any number of lanes
        return super().constant(value, hint)

    def merged(self, register: Register, mask: str, new: str, old: str) -> str:
        return super().call(merge, "G", mask, new, old, str(register.bits))

    def multiply(self, products: int) -> None:
        if self._guarded:
            self.line(f"G.products += {products} * {self._mask}.bit_count()")
        else:
            super().multiply(products)

    def _counted_products(self, mask: str) -> list[str]:
        return [text.replace("w.", "G.", 1) for text in super()._counted_products(mask)]


class GangCode:
    """What gangs execute of a program, compiled on demand."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kernel = program.kernel
        self._blocks: dict[int, GangBlock | None] = {}
        self._safe: dict[int, bool] = {}
        self._alone: dict[Hashable, bool] = {}
        """Whether the code of an instruction needs no warp, by what decides about it."""

    @cached_property
    def entries(self) -> set[int]:
        """Places where warps wait for others to form a gang: costly loops and runs without other instructions.

        A block is divided where such a run begins.
        """
        program, instructions = self._program, self._kernel.instructions
        if program.followed or program.control is not None or any(ins.root in _APART for ins in instructions):
            return set()
        costly = self._costly
        if sum(costly) < _LOOP:
            return set()
        found: set[int] = set()
        for ins in instructions:
            for target in program.flow.successors(ins.index):
                if target <= ins.index and sum(costly[target : ins.index]) >= _LOOP:
                    body = instructions[target : ins.index + 1]
                    if all(each.root == "bra" or self._is_safe(each) for each in body):
                        found.add(target)
        for start, stop in pairwise(sorted({*program.flow.leaders, len(instructions)})):
            if sum(costly[start:stop]) >= _STRAIGHT:
                found.update(self._runs(start, stop))
        for place in found:
            program.divide(place)
        return found

    def _runs(self, start: int, stop: int) -> Iterator[int]:
        """Yield where costly runs of instructions begin that a gang executes."""
        first = start
        for at in range(start, stop + 1):
            if at == stop or not self._is_safe(self._kernel.instructions[at]):
                if sum(self._costly[first:at]) >= _STRAIGHT:
                    yield first
                first = at + 1

    def live(self, place: int) -> frozenset[int]:
        """Return the slots whose values are needed from a place on."""
        return self._program.liveness.live_before(place)

    def block(self, place: int) -> GangBlock | None:
        """Return the block at a place; None if its first instruction is not executed in lockstep."""
        if place not in self._blocks:
            self._blocks[place] = self._compile(place)
        return self._blocks[place]

    @cached_property
    def _costly(self) -> list[bool]:
        """Whether an instruction takes numpy's time: floating point, and what else differs between lanes."""
        instructions = self._kernel.instructions
        read = [{register.slot for register in sources(ins)} for ins in instructions]
        written = [{register.slot for register in results(ins)} for ins in instructions]
        varying: set[int] = set()
        varying.update(*(slots for ins, slots in zip(instructions, written, strict=True) if _names_lane(ins)))
        grown = True
        while grown:
            before = len(varying)
            for slots, outcome in zip(read, written, strict=True):
                if not varying.isdisjoint(slots):
                    varying |= outcome
            grown = len(varying) > before
        return [
            (ins.root in _COSTLY and not _REAL.isdisjoint(ins.parts))
            or (ins.root != "mov" and not varying.isdisjoint(slots) and computing(ins))
            for ins, slots in zip(instructions, written, strict=True)
        ]

    def _emitter(self) -> _GangEmitter:
        program = self._program
        return _GangEmitter(
            special=_special, symbol=lambda name: _of_grid(program.symbol(name)), parameter=program.parameter,
            used=program.reads,
        )  # fmt: skip

    def _is_safe(self, ins: Instruction) -> bool:
        if ins.index not in self._safe:
            self._safe[ins.index] = self._lowers(ins)
        return self._safe[ins.index]

    def _lowers(self, ins: Instruction) -> bool:
        weak = ins.root in ("ld", "st") and not is_strong(ins)
        if (
            not (weak or computing(ins))
            or ins.index in self._program.marks
            or "128" in ins.parts[-1]
            or any(each.slot in self._program.deferred.slots for each in sources(ins))
        ):
            return False
        guard = None if ins.guard is None else ins.guard.negated
        key = ins.opcode, guard, tuple(map(self._form, ins.operands))
        if key not in self._alone:
            emitter = self._emitter()
            try:
                emitter.begin(ins)
                self._program.lower(ins, emitter)
                emitter.packs.need_all()
                emitter.end()
                self._alone[key] = not any(_WARP.search(line) for line in emitter.lines)
            except (Unsupported, Fault):
                self._alone[key] = False
        return self._alone[key]

    def _form(self, operand: Operand) -> object:
        """Return an operand without the number of its register and its offset, which are not in question here."""
        if isinstance(operand, Register):
            return operand.bits, operand.negated, self._program.reads(operand.slot)
        if isinstance(operand, Address):
            return Address, self._form(operand.base)
        return tuple(map(self._form, operand.items)) if isinstance(operand, Vector) else operand

    def _compile(self, start: int) -> GangBlock | None:
        program, instructions = self._program, self._kernel.instructions
        emitter = self._emitter()
        at = start
        while at < len(instructions):
            ins = instructions[at]
            if at != start and program.starts(at):
                break
            if ins.root == "bra":
                emitter.begin(ins)
                emitter.leave(self._counting(start, at + 1), program.stores(emitter, at, after=at))
                _branch(ins, emitter)
                emitter.end()
                return self._finish(start, emitter)
            if not self._is_safe(ins):
                if at == start:
                    return None
                break
            emitter.begin(ins)
            program.lower(ins, emitter)
            if count := products(ins):
                emitter.multiply(count)
            emitter.end()
            at += 1
        emitter.leave(self._counting(start, at), program.stores(emitter, at - 1, after=at))
        emitter.line(f"return {at}")
        return self._finish(start, emitter)

    def _finish(self, start: int, emitter: _GangEmitter) -> GangBlock:
        run = self._program.finish(start, emitter, gang=True)
        return GangBlock(run, tuple(emitter.loaded.items()), tuple(emitter.written))

    def _counting(self, start: int, stop: int) -> str:
        """Return the statement that counts what a block has executed."""
        text = f"G.executed += {stop - start}"
        passed, counted = self._program.passed, self._program.counted
        if passed or counted:
            number = self._program.passage(range(start, stop), ends=True)
            text += f"; G.passed.add({number})" * passed
            text += f"; G.cta.launch.detail.ran[{number}] += len(G.warps)" * counted
        return text


def _branch(ins: Instruction, emitter: Emitter) -> None:
    target = ins.operands[0]
    assert isinstance(target, Label)
    if ins.guard is None:
        emitter.line(f"return {target.index}")
        return
    name = emitter.predicate(ins.guard.register)
    after = ins.index + 1
    taken, other = (after, target.index) if ins.guard.negated else (target.index, after)
    emitter.line(f"if {name} is True: return {taken}")
    emitter.line(f"if {name} is False: return {other}")
    emitter.line(f"return G.branch({name}, {taken}, {other}, {ins.index})")


def _of_grid(text: str) -> str:
    """Return an expression for all warps of a gang: facts of the grid, and shared addresses, equal in one rank."""
    return text.replace("w.cta.launch.", "G.cta.launch.").replace("w.cta.shared.base", "G.cta.shared.base")


def _special(name: str) -> tuple[str, int]:
    text, bits = registers.special(name)
    grid = ("w.cta.launch.block", "w.cta.launch.shape", "w.cta.launch.clusters")
    return (_of_grid(text) if text.startswith(grid) else text), bits


def _names_lane(ins: Instruction) -> bool:
    """Return whether an instruction has an operand that differs between the lanes of a warp by itself."""
    operands = [item for each in ins.operands for item in (each.items if isinstance(each, Vector) else (each,))]
    return any(isinstance(each, Special) and each.name.startswith(("tid", "lane")) for each in operands)

"""Compiler of a kernel's instructions to Python functions, one a block, compiled when the block is first reached.

``block(R, w, m) -> int`` runs instructions from one place to the next branch, with registers in Python locals, and
returns the next place, or a negative number: ``~place`` when the group waits there, or one of the codes below. A block
exists in variants: alone in its warp it simply stores its registers; while other groups of the warp are parked, it
merges those that are live where they are parked, and stops before ``.sync`` instructions, where lanes meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_nvfp4.sim.deferred import deferred_slots
from pytest_nvfp4.sim.fault import Unsupported, needs_data
from pytest_nvfp4.sim.lower import registers
from pytest_nvfp4.sim.lower.apart import BITS, apart_slots
from pytest_nvfp4.sim.lower.batches import batched
from pytest_nvfp4.sim.lower.control import TERMINATORS, converged, meets, terminate
from pytest_nvfp4.sim.lower.control_slice import ControlSlice
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.lower.frames import Frames
from pytest_nvfp4.sim.lower.layout import SharedLayout
from pytest_nvfp4.sim.lower.runs import with_runs
from pytest_nvfp4.sim.memory.rounded import computed_slots
from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.liveness import Liveness
from pytest_nvfp4.sim.ptx.marks import marks_of
from pytest_nvfp4.sim.ptx.roles import products, results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Label, Module, Register
from pytest_nvfp4.sim.ptx.uses import PassingStores, Uses, uses_before_writes, uses_of
from pytest_nvfp4.sim.run.following import FollowedValues, watched
from pytest_nvfp4.sim.run.marked import marked
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.wgmma.registers import accumulators, unfenced

if TYPE_CHECKING:
    from pytest_nvfp4.sim.lower.ganged import GangCode
    from pytest_nvfp4.sim.run.polling import Load

Block = Callable[[list[Any], "Warp", int], int]
_PRODUCT = "a product that control flow, an address or a barrier may depend on"
_MAX_BLOCK = 400
_MAX_REGION = 64
"""Most instructions that a forward branch may skip for them to run in place under a mask."""


def longest_prefix(table: Mapping[str, Any] | frozenset[str], parts: tuple[str, ...]) -> str | None:
    """Return the longest dotted prefix of an opcode that is a key."""
    for count in range(len(parts), 0, -1):
        key = ".".join(parts[:count])
        if key in table:
            return key
    return None


class Passage(NamedTuple):
    """Instructions that a warp executes without a branch: a block, or a region in it that some lanes run.

    Attributes:
        instructions: Their indices, ascending; a block's without those of its regions.
        ends: Whether it is a block; its regions come before it.
    """

    instructions: tuple[int, ...]
    ends: bool


class Program:
    """A kernel, compiled block by block on demand.

    Args:
        module, kernel: The parsed PTX.
        lowerings: From opcode prefix to lowering.
        blocking: Opcode prefixes of instructions that may have to wait, and so start a block.
        followed: Whether blocks append the numbers of what they execute to ``Warp.path``.
        passed: Whether blocks add these numbers to ``Warp.passed``.
        counted: Whether blocks count these numbers in ``Grid.detail``.
        stepped: Whether each block is one instruction, after which all registers hold their values.
        control: What is needed in a simulation without data; None to execute everything.

    Attributes:
        passages: By number, what a compiled block or region executes, if followed, passed or counted.
        marks: What the author named, by instruction.
        frames: The compiled blocks that Python's stack shows.
    """

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        *,
        lowerings: Mapping[str, Lowering],
        blocking: frozenset[str],
        followed: bool = False,
        passed: bool = False,
        counted: bool = False,
        stepped: bool = False,
        control: ControlSlice | None = None,
    ) -> None:
        self.module = module
        self.kernel = kernel
        self.control = control
        self.passages: list[Passage] = []
        self.followed = followed
        self.passed = passed
        self.counted = counted
        self.flow = Flow(kernel)
        self.liveness = Liveness(self.flow)
        self.shared = SharedLayout(module, kernel)
        self.marks, self._skipped = (found := marks_of(module, kernel)).at, found.skipped
        self.alone: list[Block | None] = [None] * (len(kernel.instructions) + 1)
        """Blocks by place, for a warp without parked groups."""
        self.deferred = deferred_slots(kernel, accumulators)
        """Slots whose value may be deferred until it is read."""
        self.apart = frozenset() if stepped else apart_slots(kernel)
        """Slots of registers whose value is a tuple of its items."""
        self._notes = unfenced(kernel)
        self.registers: list[Any] = [False if r.bits == 1 else _poison(r.bits) for r in kernel.registers]
        for slot in self.apart:
            self.registers[slot] = (_poison(BITS),) * 2
        self._parked: dict[tuple[int, tuple[int, ...]], Block] = {}
        self._lowerings = lowerings
        self._starts = set(range(len(kernel.instructions))) if stepped else set(self.flow.leaders)
        self._stepped = stepped
        self._meetings: set[int] = set()
        self._regions: dict[int, int | None] = {}
        self._slices: dict[tuple[tuple[int, ...], int], Callable[[Mapping[int, Any], Warp, int], Any]] = {}
        self.frames = Frames(kernel, self._regions, self._slice)
        self._sources: dict[int, list[int]] = {}
        for instruction in kernel.instructions:
            for target in self.flow.successors(instruction.index):
                if target != instruction.index + 1:
                    self._sources.setdefault(target, []).append(instruction.index)
        self._waits: set[int] = set()
        self._watched: set[int] = set()
        self._uses: dict[tuple[int, frozenset[int] | None, PassingStores], Uses] = {}
        for instruction in kernel.instructions:
            if longest_prefix(blocking, instruction.parts) is not None:
                self._starts.add(instruction.index)
                self._waits.add(instruction.index)
            if meets(instruction):
                self._meetings.add(instruction.index)

    @cached_property
    def _read_slots(self) -> frozenset[int]:
        """Registers that some instruction reads."""
        return frozenset(register.slot for ins in self.kernel.instructions for register in sources(ins))

    @cached_property
    def sums(self) -> frozenset[int]:
        """Slots of the registers that only fp32 arithmetic and copies of its results write."""
        return computed_slots(self.kernel)

    @cached_property
    def gangs(self) -> GangCode:
        """What gangs of warps execute."""
        from pytest_nvfp4.sim.lower.ganged import GangCode

        return GangCode(self)

    @cached_property
    def polling(self) -> Mapping[int, tuple[Load, ...] | None]:
        """What loops that poll memory read, by instruction."""
        from pytest_nvfp4.sim.run.polling import polling_loops

        return polling_loops(self.kernel, self.flow)

    def reads(self, slot: int) -> bool:
        """Return whether some instruction reads a register."""
        return slot in self._read_slots

    def divide(self, place: int) -> None:
        """Start a block at a place, too; blocks that are compiled already stay whole."""
        self._starts.add(place)

    def starts(self, place: int) -> bool:
        """Return whether a block must start at a place."""
        return place in self._starts

    def block(self, place: int) -> Block:
        """Return the block at a place, for a group that is alone in its warp."""
        found = self.alone[place]
        if found is None:
            found = self.alone[place] = self._compile(place, frozenset(), parked=False)
        return found

    def block_beside(self, place: int, parked: tuple[int, ...]) -> Block:
        """Return the block at a place, while groups are parked at the given places."""
        key = (place, parked)
        found = self._parked.get(key)
        if found is None:
            keep = frozenset().union(*(self.liveness.live_before(at) for at in parked))
            found = self._parked[key] = self._compile(place, keep, parked=True)
        return found

    def uses(self, at: int, registers: frozenset[int] | None = None, *, passing: PassingStores = "none") -> Uses:
        """Return the uses of what an instruction loads, see ``uses_of``."""
        key = at, registers, passing
        if key not in self._uses:
            self._uses[key] = uses_of(self.flow, at, registers, passing=passing)
        return self._uses[key]

    @cached_property
    def unset(self) -> tuple[tuple[int, int, Uses], ...]:
        """Registers that may be used before they are written: the slot, the first instruction that reads it, its uses.

        There are none where no data are computed.
        """
        found: list[tuple[int, int, Uses]] = []
        unset = self.liveness.live_before(0)
        for slot in sorted(unset) if self.control is None else ():
            uses = uses_before_writes(self.flow, slot, unset)
            if uses.matters:
                found.append((slot, min(at for at in uses.touched if slot in self.flow.slots[at].read), uses))
        return tuple(found)

    def watch(self, places: frozenset[int]) -> None:
        """Make the blocks of warps call ``run.following.watched`` before they execute the instructions.

        They do so from their next run on, for a warp that follows a value. Gangs have no such warp.
        """
        if not places <= self._watched:
            self._watched |= places
            self._parked.clear()
            self.alone[:] = [None] * len(self.alone)

    def symbol(self, name: str) -> str:
        """Return the expression of a variable's or parameter's address. Raises Unsupported."""
        if (offset := self.parameter(name)) is not None:
            return f"(w.cta.launch.parameter_address + {offset})"
        if name in self.shared.offsets:
            return f"(w.cta.shared.base + {self.shared.offsets[name]})"
        if name in self.shared.local_offsets:
            return str(self.shared.local_offsets[name])
        if any(v.name == name and v.space in ("global", "const") for v in self.module.variables):
            return f"w.cta.launch.symbols[{name!r}]"
        raise Unsupported(f"symbol {name} has no address")

    def parameter(self, name: str) -> int | None:
        """Return the offset of a kernel parameter in the parameter block, or None if there is none of that name."""
        return next((p.offset for p in self.kernel.parameters if p.name == name), None)

    def lower(self, instruction: Instruction, emitter: Emitter) -> None:
        """Write the lines of an instruction. Raises Unsupported."""
        key = longest_prefix(self._lowerings, instruction.parts)
        if key is None:
            raise Unsupported(f"{instruction.opcode} is not modelled")
        if instruction.root == "mov" and self.deferred.slots:
            emitter.rename(instruction, self._lowerings[key])
        else:
            self._lowerings[key](instruction, emitter)

    def _emitter(self) -> Emitter:
        emitter = Emitter(
            special=registers.special,
            symbol=self.symbol,
            parameter=self.parameter,
            deferred=self.deferred,
            apart=self.apart,
            notes=self._notes,
            used=self.reads,
        )
        for name, value in registers.LANES.items():
            emitter.globals[f"lane_{name}"] = value
        return emitter

    def _slice(self, places: tuple[int, ...], slot: int) -> Callable[[Mapping[int, Any], Warp, int], Any]:
        """Return the function that computes a register by some arithmetic instructions."""
        if (known := self._slices.get((places, slot))) is not None:
            return known
        emitter = self._emitter()
        for place in places:
            emitter.begin(self.kernel.instructions[place])
            self.lower(self.kernel.instructions[place], emitter)
            emitter.end()
        emitter.packs.need(slot)
        emitter.line(f"return v{slot}")
        loads = "; ".join(f"v{each} = R[{each}]" for each in emitter.loaded)
        source = f"def computed(R, w, m):\n    {loads or 'pass'}\n" + "\n".join(emitter.lines)
        exec(source, emitter.globals)
        function: Callable[[Mapping[int, Any], Warp, int], Any] = emitter.globals["computed"]
        self._slices[places, slot] = function
        return function

    def _compile(self, start: int, keep: frozenset[int], *, parked: bool) -> Block:
        emitter = self._emitter()
        instructions = self.kernel.instructions
        at = start
        executed: list[int] = []
        passed = start
        while at < len(instructions):
            instruction = instructions[at]
            full = len(executed) >= _MAX_BLOCK
            if at != passed and (at in self._starts or (parked and at in self._meetings) or full):
                break
            if not parked and (stop := self._region(at)) is not None:
                self._emit_region(emitter, at, stop)
                executed.append(at)
                at = passed = stop
                if at in self._waits or len(executed) >= _MAX_BLOCK:
                    break
                continue
            executed.append(at)
            if instruction.root in TERMINATORS:
                self._watch(emitter, instruction)
                emitter.begin(instruction)
                emitter.leave(self._counting(executed, ends=True), self.stores(emitter, at, keep))
                terminate(instruction, emitter)
                emitter.end()
                return self.finish(start, emitter)
            self._emit(emitter, instruction, meeting=parked and at in self._meetings)
            at += 1
        emitter.leave(self._counting(executed, ends=True), self.stores(emitter, at - 1, keep, after=at))
        emitter.line(f"return {at}")
        return self.finish(start, emitter)

    def _counting(self, executed: list[int], *, ends: bool) -> str:
        """Return the statement that counts what a block or region has executed."""
        text = f"w.executed += {len(executed)}"
        if self.followed or self.passed or self.counted:
            number = self.passage(executed, ends=ends)
            text += f"; w.path.append({number})" * self.followed + f"; w.passed.add({number})" * self.passed
            text += f"; w.cta.launch.detail.ran[{number}] += 1" * self.counted
        return text

    def passage(self, executed: Sequence[int], *, ends: bool) -> int:
        """Add a passage, and return its number."""
        self.passages.append(Passage(tuple(executed), ends))
        return len(self.passages) - 1

    def has_passed(self, warp: Warp, places: frozenset[int]) -> bool:
        """Return whether a warp has executed, in any lane, a block that contains one of the instructions.

        The running block does not count (``frames``). Without ``passed`` nothing is known, and the result is True.
        """
        passages = self.passages
        return not self.passed or any(not places.isdisjoint(passages[each].instructions) for each in warp.passed)

    def _emit(self, emitter: Emitter, instruction: Instruction, *, meeting: bool = False) -> None:
        if self._omitted(instruction):
            if not meeting:
                return
            emitter.begin(instruction)
            self._meet(emitter, instruction)
            emitter.end()
            return
        self._watch(emitter, instruction)
        emitter.begin(instruction)
        try:
            if meeting:
                self._meet(emitter, instruction)
            if instruction.index in self.marks:
                emitter.line(emitter.call(marked, "w", str(instruction.index)))
            if self.control is not None and instruction.index in self.control.unknown:
                emitter.line(f"raise {emitter.call(needs_data, repr(_PRODUCT))}")
            elif instruction.index not in self._skipped:
                self.lower(instruction, emitter)
            if count := products(instruction):
                emitter.multiply(count)
        except Unsupported as error:
            # The block raises it when it runs, with the place; blocks that are never reached report nothing.
            emitter.line(f"raise {emitter.call(_again, emitter.constant(error, 'unsupported'))}")
        emitter.end()

    def _watch(self, emitter: Emitter, instruction: Instruction) -> None:
        """Write the call for a watched instruction."""
        at = instruction.index
        if at not in self._watched:
            return
        guard = instruction.guard
        lanes = [emitter.mask]
        if guard is not None and instruction.root != "bra":
            lanes = [emitter.lanes_of(guard.register, negated=guard.negated)]
        if instruction.root == "selp" and isinstance(predicate := instruction.operands[3], Register):
            lanes.append(emitter.lanes_of(predicate, negated=predicate.negated))
        call = emitter.call(watched, "w", emitter.mask, str(at), *lanes)
        emitter.line(f"if {emitter.constant(FollowedValues, 'followed')} in w.units: {call}")

    def _meet(self, emitter: Emitter, instruction: Instruction) -> None:
        members = _members(instruction, emitter)
        emitter.line(f"if not {emitter.call(converged, 'w', 'm', members)}: return {~instruction.index}")

    def _omitted(self, instruction: Instruction) -> bool:
        omitted = self.control is not None and instruction.index in self.control.omitted
        return omitted and instruction.index not in self.marks

    def _region(self, at: int) -> int | None:
        """Return where lanes that take a short forward branch at ``at`` meet the others; None for other branches.

        Such instructions run in place under a mask; typically one elected lane issues a copy. Only the branch may enter
        them, and none of them may wait, meet other lanes or branch elsewhere.
        """
        if at in self._regions:
            return self._regions[at]
        self._regions[at] = None
        instruction = self.kernel.instructions[at]
        if self._stepped or instruction.root != "bra" or instruction.guard is None or instruction.has("uni"):
            return None
        target = instruction.operands[0]
        if not isinstance(target, Label) or not at + 1 < target.index <= at + _MAX_REGION:
            return None
        inside = at + 1
        while inside < target.index:
            if inside in self._waits or inside in self._meetings:
                return None
            if any(not at <= source < inside for source in self._sources.get(inside, ())):
                return None
            if self.kernel.instructions[inside].root in TERMINATORS | {"call", "trap"}:
                nested = self._region(inside)
                if nested is None or nested > target.index:
                    return None
            inside += 1
        self._regions[at] = target.index
        return target.index

    def _emit_region(self, emitter: Emitter, at: int, stop: int) -> None:
        branch = self.kernel.instructions[at]
        assert branch.guard is not None
        body = self.kernel.instructions[at + 1 : stop]
        written = [register for each in body if not self._omitted(each) for register in results(each)]
        live = self.liveness.live_before(stop)
        self._watch(emitter, branch)
        emitter.begin(branch)
        outer = emitter.open_region(branch.guard.register, negated=not branch.guard.negated, results=written, live=live)
        inside = at + 1
        executed: list[int] = []
        while inside < stop:
            nested = self._region(inside)
            executed.append(inside)
            if nested is not None:
                self._emit_region(emitter, inside, nested)
                inside = nested
            else:
                self._emit(emitter, self.kernel.instructions[inside])
                inside += 1
        counting = self._counting(executed, ends=False)
        emitter.close_region(outer, counting=counting, results=written, live=live)

    def stores(
        self, emitter: Emitter, at: int, keep: frozenset[int] = frozenset(), *, after: int | None = None
    ) -> list[str]:
        """Return the statements that store what a block ending with instruction ``at`` has written and others need."""
        live: set[int] = set()
        for follower in self.flow.successors(at) if after is None else (after,):
            live |= self.liveness.live_before(follower)
        lines = []
        for slot in emitter.written:
            kept = slot in live or self._stepped
            if slot in keep or kept:
                emitter.packs.need(slot)
            if slot in keep:
                merged = emitter.merged(self.kernel.registers[slot], "m", f"v{slot}", f"R[{slot}]")
                lines.append(f"R[{slot}] = {merged}")
            elif kept:
                lines.append(f"R[{slot}] = v{slot}")
        return lines

    def finish(self, start: int, emitter: Emitter, *, gang: bool = False) -> Callable[..., int]:
        """Return the function of a block, of a warp or of a gang."""
        name = f"block_{start}"
        loads = "; ".join(f"v{slot} = R[{slot}]" for slot in emitter.loaded)
        predicates = {f"v{slot}" for slot, bits in emitter.written.items() if bits == 1}
        lines, line_at = batched(emitter.lines, emitter.line_at, emitter.globals, predicates)
        if not gang:
            lines, line_at = with_runs(lines, line_at, emitter.globals, self.kernel.instructions)
        body = "\n".join(lines)
        source = f"def {name}(R, {'G' if gang else 'w'}, m):\n    {loads or 'pass'}\n{body}\n"
        code = compile(source, f"<{self.kernel.name[:40]} at {start}>", "exec")
        exec(code, emitter.globals)
        function: Callable[..., int] = emitter.globals[name]
        # One line of loads precedes the body.
        watched = frozenset() if gang else frozenset(self._watched)
        self.frames.add(function.__code__, [(start, "m"), *line_at], watched=watched)
        return function


def _members(instruction: Instruction, emitter: Emitter) -> str:
    if "aligned" in instruction.parts or instruction.root in ("tcgen05", "wgmma", "barrier", "setmaxnreg"):
        return "0xFFFFFFFF"
    return emitter.value(instruction.operands[-1], 32)


def _again(error: Unsupported) -> Unsupported:
    return Unsupported(error.message, hint=error.hint)


def _poison(bits: int) -> int:
    return int.from_bytes(b"\xde\xad\xbe\xef" * 2, "big") >> (64 - bits) if bits <= 64 else 0xDEAD_BEEF

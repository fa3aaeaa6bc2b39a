"""Warpgroups and their asynchronous matrix instructions (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").

Rules, all from the ISA unless said otherwise:

- A warpgroup is four warps of which the first's number is a multiple of 4. All of them execute the same ``wgmma``
  instructions in the same order with the same descriptors and the same scale-d; the product is done when the last of
  the four has come. A warp that comes early goes on, and waits at ``wgmma.wait_group``.
- ``wgmma.fence`` stands before the first ``wgmma.mma_async`` and after every other access to a register that one
  reads or writes. Checked: no fence at all before a warp's first; no fence after the accumulator was read; a write of
  an operand register in the same straight line of code with no fence between, other than a ``mov`` of a constant or of
  another register.
- Registers of an ``wgmma.mma_async`` are not to be touched until ``wgmma.wait_group`` says that its group is complete.
  A read of the accumulator before is a finding. Not one: a ``mov`` that only renames, to a register or to two halves,
  which compilers write where loops close and between f16 accumulators and their elements, and which ptxas removes (or
  waits for; observed in the DSL's PTX, not in the ISA). Writes of registers in flight are not seen.
- Shared memory is read when the product is done, that is when all four warps have come, or later where the machine
  runs asynchronous work late.

What a matrix row read that nothing wrote gives is undefined (NaN), and its instructions are counted: kernels that pad
a ragged tile read such rows and store nothing of them.

Counters: ``wgmma.instructions`` (of warpgroups), ``wgmma.macs``, ``wgmma.shared.bytes`` read, ``wgmma.groups``
(commits by warps), ``wgmma.undefined.instructions``, ``wgmma.fp8.accumulation`` (see ``product``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_nvfp4.sim.deferred import Pending
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL, Bits, Predicate, uniform
from pytest_nvfp4.sim.wgmma.fragments import stack
from pytest_nvfp4.sim.wgmma.operation import Operation, WgmmaForm
from pytest_nvfp4.sim.wgmma.warp_accumulator import WarpAccumulator

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Group, Warp

__all__ = ["Warpgroup", "WarpgroupMember", "Warpgroups", "commit", "fence", "issue", "wait"]


class Warpgroup:
    """Four warps and their operations. It is what their ``wait_group`` waits for."""

    def __init__(self, cta: Cta, first: int) -> None:
        self.cta = cta
        self.first = first
        self.waiters: list[Group] = []
        self.open: dict[int, Operation] = {}
        """Operations that not all four warps have come to, by number."""
        self.issued = [0, 0, 0, 0]
        self.performed = 0
        """Operations done, from the first."""

    def waiting_for(self) -> str:
        """For the report of a deadlock."""
        return (
            f"wgmma of warpgroup {self.first // 4}: warps {self.first} to {self.first + 3} have issued "
            f"{', '.join(map(str, self.issued))}, {self.performed} are done"
        )

    def finish(self, operation: Operation) -> None:
        """Perform an operation and let the warps go on that wait for it."""
        operation.perform(self.cta)
        self.performed += 1
        self.cta.launch.machine.changes += 1
        waiters, self.waiters = self.waiters, []
        for group in waiters:
            group.wake()


class Warpgroups:
    """The warpgroups of a CTA."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self._groups: dict[int, Warpgroup] = {}

    def of(self, warp: Warp) -> Warpgroup:
        """The warpgroup of a warp.

        Raises:
            Fault: it has fewer than four whole warps.
        """
        first = warp.index & ~3
        found = self._groups.get(first)
        if found is None:
            x, y, z = self.cta.launch.block
            if x * y * z < 32 * (first + 4):
                raise Fault(
                    "wgmma",
                    f"warp {warp.index} is not in a whole warpgroup: the CTA has {x * y * z} threads, and "
                    f"warps {first} to {first + 3} need {32 * (first + 4)}",
                    hint="launch a multiple of 128 threads",
                )
            found = self._groups[first] = Warpgroup(self.cta, first)
        return found

    def at_exit(self) -> None:
        """Nothing may be left that some warps issued and others did not."""
        for group in self._groups.values():
            if group.open:
                number, operation = next(iter(group.open.items()))
                raise Fault(
                    "wgmma",
                    f"{operation.form.name} (number {number}) was issued by warps {_warps(group, operation)} only, and "
                    f"all four warps of a warpgroup must execute it; {group.waiting_for()}",
                    hint="look for a branch on the warp or lane around the MMA",
                )


def _warps(group: Warpgroup, operation: Operation) -> str:
    return ", ".join(str(group.first + quarter) for quarter in range(4) if operation.arrived >> quarter & 1)


class WarpgroupMember:
    """A warp's part in its warpgroup."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.quarter = warp.index & 3
        self.group = warp.cta.unit(Warpgroups).of(warp)
        self.fences = 0
        self.commits: list[int] = []
        """For every group not waited for, in order, the number of operations issued at its commit."""
        self.committed = 0
        self.complete = 0
        """Operations that this warp knows to be done."""
        self.settled: WarpAccumulator | None = None
        """The accumulator that was looked at last."""

    def complete_text(self) -> str:
        """What has been waited for, in words."""
        issued = self.group.issued[self.quarter]
        if self.committed < issued:
            return f"{self.complete} of {issued} are waited for, and {issued - self.committed} were not committed"
        return f"{self.complete} of {issued} are waited for, in {len(self.commits)} groups still open"


def fence(w: Warp, mask: int) -> None:
    """``wgmma.fence``."""
    _aligned(mask, "wgmma.fence")
    w.unit(WarpgroupMember).fences += 1
    monitor = w.cta.launch.machine.monitor
    if monitor is not None:
        monitor.wgmma_fenced(w)


def commit(w: Warp, mask: int) -> None:
    """``wgmma.commit_group``."""
    _aligned(mask, "wgmma.commit_group")
    member = w.unit(WarpgroupMember)
    member.committed = member.group.issued[member.quarter]
    member.commits.append(member.committed)
    w.cta.launch.counters["wgmma.groups"] += 1


def wait(w: Warp, mask: int, pending: int) -> bool | None:
    """``wgmma.wait_group``: None while more than ``pending`` of the warp's groups are not done."""
    _aligned(mask, "wgmma.wait_group")
    member = w.unit(WarpgroupMember)
    commits = member.commits
    if len(commits) > pending:
        done = commits[-1 - pending]
        if member.group.performed < done:
            w.wait_for(member.group)
            return None
        member.complete = done
        member.commits = commits[len(commits) - pending :]
        monitor = w.cta.launch.machine.monitor
        if monitor is not None:
            monitor.wgmma_waited(w, member.group, done)
    return True


def issue(
    w: Warp,
    mask: int,
    form: WgmmaForm,
    registers: tuple[Any, ...],
    a: Bits | tuple[Any, ...],
    b: Bits,
    scale: Predicate,
) -> list[Any] | None:
    """``wgmma.mma_async`` by one warp.

    Args:
        w, mask: The warp and its lanes.
        form: The instruction.
        registers: The accumulator's registers, as they are (``Pending`` or values).
        a: A's descriptor, or its registers.
        b: B's descriptor.
        scale: scale-d.

    Returns:
        What the accumulator's registers hold from now on; None if that is what they hold already.
    """
    _aligned(mask, form.name)
    member = w.unit(WarpgroupMember)
    group, quarter = member.group, member.quarter
    scaled = _same(scale, "scale-d", form)
    b_bits = _descriptor(b, "matrix B", form)
    a_bits = None if form.from_registers else _descriptor(a, "matrix A", form)  # type: ignore[arg-type]
    _check_fences(member, form)
    number = group.issued[quarter]
    operation = group.open.get(number)
    if operation is None:
        operation = group.open[number] = Operation(
            form, number, a_bits, b_bits, scale=bool(scaled), shared=w.cta.shared
        )
    else:
        _check_same(group, operation, form, a_bits, b_bits, w.index, scale=bool(scaled))
    if form.from_registers:
        operation.fragments[quarter] = stack([x.settle() if x.__class__ is Pending else x for x in a])  # type: ignore[union-attr]
    answer = _extend(member, form, operation, registers, scaled=bool(scaled))
    group.issued[quarter] = number + 1
    operation.arrived |= 1 << quarter
    machine = w.cta.launch.machine
    if machine.monitor is not None:
        machine.monitor.wgmma_issued(w, group, operation, form.at)
    if operation.arrived == 0xF:
        del group.open[number]
        machine.asynchronous.submit(("wgmma", w.cta, group.first), lambda: group.finish(operation), what=form.name)
    return answer


def _extend(
    member: WarpgroupMember, form: WgmmaForm, operation: Operation, registers: tuple[Any, ...], *, scaled: bool
) -> list[Any] | None:
    tile, tokens = _tile_of(member, form, registers)
    if tile is not None and tile.touched == member.fences:
        member.warp.cta.launch.report(
            "wgmma",
            f"{form.name}: its accumulator was read after the last wgmma.fence",
            hint="wgmma.fence orders accesses to a register before a wgmma that uses it (warpgroup.fence())",
        )
    if tile is not None and tokens and not form.copied:
        if scaled:
            tile.extend(operation)
        else:
            tile.restart(operation)
        return None
    count = len(registers)
    made: WarpAccumulator
    if not scaled:
        made = WarpAccumulator(member, form.accumulator, count, None)
    elif tile is None:
        start = [value.settle() if value.__class__ is Pending else value for value in registers]
        made = WarpAccumulator(member, form.accumulator, count, start)
    elif tile.values is not None:
        made = WarpAccumulator(member, form.accumulator, count, tile.values)
    else:
        made = WarpAccumulator(member, form.accumulator, count, tile.start)
        made.operations = list(tile.operations)
    made.operations.append(operation)
    return made.tokens


def _tile_of(
    member: WarpgroupMember, form: WgmmaForm, registers: tuple[Any, ...]
) -> tuple[WarpAccumulator | None, bool]:
    """The tile that all registers are of, in order, and whether they hold its tokens (or else its settled values)."""
    head = registers[0]
    if head.__class__ is Pending:
        tile = head.source
        if (
            isinstance(tile, WarpAccumulator)
            and tile.member is member
            and tile.accumulator is form.accumulator
            and tile.tokens == list(registers)
        ):
            return tile, True
        return None, False
    settled = member.settled
    if (
        settled is not None
        and settled.values is not None
        and settled.accumulator is form.accumulator
        and len(settled.values) == len(registers)
        and all(one is other for one, other in zip(settled.values, registers, strict=True))
    ):
        return settled, False
    return None, False


def _aligned(mask: int, name: str) -> None:
    if mask != FULL:
        raise Fault("wgmma", f"{name} is executed by lanes {mask:#010x}, and .aligned needs all 32 of the warp")


def _same(value: Predicate, what: str, form: WgmmaForm) -> bool:
    if isinstance(value, bool):
        return value
    found = uniform(value, FULL)
    if found is None:
        raise Fault("wgmma", f"{form.name}: {what} differs between the lanes of the warp")
    return bool(found)


def _descriptor(value: Bits, what: str, form: WgmmaForm) -> int:
    if isinstance(value, int):
        return value
    found = uniform(value, FULL)
    if found is None:
        raise Fault("wgmma", f"{form.name}: the descriptor of {what} differs between the lanes of the warp")
    return found


def _check_fences(member: WarpgroupMember, form: WgmmaForm) -> None:
    if member.fences and not form.unfenced:
        return
    report = member.warp.cta.launch.report
    if not member.fences:
        report(
            "wgmma",
            f"{form.name} of warp {member.warp.index} comes before any wgmma.fence",
            hint="a wgmma.fence must stand before the first wgmma.mma_async (warpgroup.fence())",
        )
    if form.unfenced:
        report(
            "wgmma",
            f"{form.name} uses register {form.unfenced}, which is written with no wgmma.fence in between",
            hint="wgmma.fence orders accesses to a register before a wgmma that uses it (warpgroup.fence())",
        )


def _check_same(
    group: Warpgroup, operation: Operation, form: WgmmaForm, a_bits: int | None, b_bits: int, warp: int, *, scale: bool
) -> None:
    if operation.form.at != form.at:
        what = f"{form.name} (instruction {form.at}) by warp {warp}, {operation.form.name} ({operation.form.at})"
    elif operation.a_bits != a_bits:
        what = f"descriptor of A {a_bits:#018x} by warp {warp}, {operation.a_bits:#018x}"
    elif operation.b_bits != b_bits:
        what = f"descriptor of B {b_bits:#018x} by warp {warp}, {operation.b_bits:#018x}"
    elif operation.scale != scale:
        what = f"scale-d {scale} by warp {warp}, {operation.scale}"
    else:
        return
    raise Fault(
        "wgmma",
        f"the warps of warpgroup {group.first // 4} do not execute the same wgmma number {operation.number}: {what} by "
        f"warps {_warps(group, operation)}",
        hint="all four warps of a warpgroup execute the same wgmma.mma_async with the same descriptors",
    )

"""Warpgroups and their asynchronous matrix instructions (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").

Rules, all from the ISA unless said otherwise:

- A warpgroup is four warps of which the first's number is a multiple of 4. All of them execute the same ``wgmma``
  instructions in the same order with the same descriptors and the same scale-d. The operation is performed when the
  last of the four has issued it. A warp that issues early continues, and waits at ``wgmma.wait_group``.
- ``wgmma.fence`` is required before the first ``wgmma.mma_async`` and after every other access to a register that one
  reads or writes. Checked: no fence at all before a warp's first operation; no fence after the accumulator was read; a
  write of an operand register in straight-line code before the operation with no fence in between, other than a ``mov``
  of a constant or of another register.
- Registers of a ``wgmma.mma_async`` must not be accessed until ``wgmma.wait_group`` has waited for its group. An early
  read of the accumulator is a finding, except for a ``mov`` that only renames, to a register or to two halves:
  compilers emit it where loops close and between f16 accumulators and their elements, and ptxas removes it or waits for
  it (observed in the DSL's PTX, not in the ISA). Writes of registers in flight are not detected.
- Shared memory is read when the operation is performed, or later where the machine runs asynchronous work late.

A row of the result that depends on uninitialised bytes is undefined (NaN), and its instructions are counted: kernels
that pad a ragged tile read such rows and store nothing of them.

Counters: ``wgmma.instructions`` (of warpgroups), ``wgmma.macs``, ``wgmma.shared.bytes`` read, ``wgmma.groups``
(commits by warps), ``wgmma.undefined.instructions``, ``wgmma.fp8.accumulation`` (see ``product``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.sim.deferred import Pending
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL, Bits, Predicate, uniform
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.wgmma.descriptor import RESERVED
from pytest_nvfp4.sim.wgmma.fragments import stack
from pytest_nvfp4.sim.wgmma.operation import WgmmaForm, WgmmaOperation
from pytest_nvfp4.sim.wgmma.warp_accumulator import WarpAccumulator

_FENCE_HINT = "wgmma.fence orders accesses to a register before a wgmma that uses it (warpgroup.fence())"


class Warpgroup:
    """Four warps and their operations. Warps at ``wgmma.wait_group`` wait for it.

    Attributes:
        first: Number of the first warp.
        open: Operations that not all four warps have issued, by number.
        issued: Number of operations that each warp has issued.
        performed: Number of operations performed.
    """

    def __init__(self, cta: Cta, first: int) -> None:
        self.cta = cta
        self.first = first
        self.waiters: list[Group] = []
        self.open: dict[int, WgmmaOperation] = {}
        self.issued = [0, 0, 0, 0]
        self.performed = 0

    def waiting_for(self) -> str:
        """Return what the warps wait for, for the report of a deadlock."""
        return (
            f"wgmma of warpgroup {self.first // 4}: warps {self.first} to {self.first + 3} have issued "
            f"{', '.join(map(str, self.issued))}, {self.performed} are done"
        )

    def finish(self, operation: WgmmaOperation) -> None:
        """Perform an operation and wake the warps that wait for it."""
        operation.perform(self.cta)
        self.performed += 1
        self.cta.launch.machine.changes += 1
        wake_all(self)


class Warpgroups:
    """Warpgroups of a CTA: ``cta.unit(Warpgroups)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self._groups: dict[int, Warpgroup] = {}

    def of(self, warp: Warp) -> Warpgroup:
        """Return the warpgroup of a warp. Raises Fault: it has fewer than four whole warps."""
        first = warp.index & ~3
        group = self._groups.get(first)
        if group is None:
            x, y, z = self.cta.launch.block
            if x * y * z < 32 * (first + 4):
                raise Fault(
                    "wgmma",
                    f"warp {warp.index} is not in a whole warpgroup: the CTA has {x * y * z} threads, and "
                    f"warps {first} to {first + 3} need {32 * (first + 4)}",
                    hint="launch a multiple of 128 threads",
                )
            group = self._groups[first] = Warpgroup(self.cta, first)
        return group

    def at_exit(self) -> None:
        """Raise Fault if some warps issued an operation that others did not."""
        for group in self._groups.values():
            if group.open:
                number, operation = next(iter(group.open.items()))
                raise Fault(
                    "wgmma",
                    f"{operation.form.name} (number {number}) was issued by warps {_warps(group, operation)} only; "
                    f"all four warps of a warpgroup must execute it; {group.waiting_for()}",
                    hint="look for a branch on the warp or lane around the MMA",
                )


def _warps(group: Warpgroup, operation: WgmmaOperation) -> str:
    return ", ".join(str(group.first + quarter) for quarter in range(4) if operation.arrived >> quarter & 1)


class WarpgroupMember:
    """State of a warp in its warpgroup: ``warp.unit(WarpgroupMember)``.

    Attributes:
        commits: For every group not waited for, in order, the number of operations issued at its commit.
        complete: Number of operations that the warp has waited for.
        settled: The accumulator that was read last.
    """

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.quarter = warp.index & 3
        self.group = warp.cta.unit(Warpgroups).of(warp)
        self.fences = 0
        self.commits: list[int] = []
        self.committed = 0
        self.complete = 0
        self.settled: WarpAccumulator | None = None

    def complete_text(self) -> str:
        """Return how many operations the warp has waited for and committed, for messages."""
        issued = self.group.issued[self.quarter]
        if self.committed < issued:
            return f"{self.complete} of {issued} are waited for, and {issued - self.committed} were not committed"
        return f"{self.complete} of {issued} are waited for, in {len(self.commits)} groups still open"


def fence(w: Warp, mask: int) -> None:
    """Execute ``wgmma.fence``."""
    _check_whole_warp(mask, "wgmma.fence")
    w.unit(WarpgroupMember).fences += 1
    if (monitor := w.cta.launch.machine.monitor) is not None:
        monitor.wgmma_fenced(w)


def commit(w: Warp, mask: int) -> None:
    """Execute ``wgmma.commit_group``."""
    _check_whole_warp(mask, "wgmma.commit_group")
    member = w.unit(WarpgroupMember)
    member.committed = member.group.issued[member.quarter]
    member.commits.append(member.committed)
    w.does.add("mma")
    w.cta.launch.counters["wgmma.groups"] += 1


def wait(w: Warp, mask: int, pending: int) -> bool | None:
    """Execute ``wgmma.wait_group``: return None while more than ``pending`` of the warp's groups are incomplete."""
    _check_whole_warp(mask, "wgmma.wait_group")
    member = w.unit(WarpgroupMember)
    commits = member.commits
    if len(commits) > pending:
        done = commits[-1 - pending]
        if member.group.performed < done:
            w.wait_for(member.group)
            return None
        member.complete = done
        member.commits = commits[len(commits) - pending :]
        if (monitor := w.cta.launch.machine.monitor) is not None:
            monitor.wgmma_waited(w, member.group, done)
    return True


def issue(
    w: Warp, mask: int, form: WgmmaForm, registers: tuple[Any, ...], a: Bits | tuple[Any, ...], b: Bits,
    scale: Predicate,
) -> list[Any] | None:  # fmt: skip
    """Issue ``wgmma.mma_async`` for one warp.

    Args:
        w, mask: The warp and its lanes.
        form: The instruction.
        registers: The accumulator's registers: ``Pending`` tokens or values.
        a: A's descriptor, or its registers.
        b: B's descriptor.
        scale: scale-d.

    Returns:
        The new contents of the accumulator's registers; None if they do not change.
    """
    _check_whole_warp(mask, form.name)
    member = w.unit(WarpgroupMember)
    group, quarter = member.group, member.quarter
    scaled = bool(_uniform(scale, "scale-d", form))
    b_bits = _uniform(b, "the descriptor of matrix B", form)
    a_bits = None if form.from_registers else _uniform(a, "the descriptor of matrix A", form)  # type: ignore[arg-type]
    _check_fences(member, form)
    number = group.issued[quarter]
    operation = group.open.get(number)
    if operation is None:
        operation = group.open[number] = WgmmaOperation(
            form, number, a_bits, b_bits, scale=scaled, shared=w.cta.shared
        )  # fmt: skip
        reserved = [
            f"bits {bits & RESERVED:#x} of the descriptor {bits:#018x} of matrix {matrix}"
            for matrix, bits in (("A", a_bits), ("B", b_bits))
            if bits is not None and bits & RESERVED
        ]
        if reserved:
            w.cta.launch.report(
                "reserved-bits",
                f"{form.name}: {' and '.join(reserved)} are set, which are reserved: an H200 ignores them, and the PTX "
                "ISA does not say so",
                hint="the descriptor of wgmma is not that of tcgen05 (version bit 46, swizzle in bits 61-63), and its "
                "offsets have 14 bits",
            )
    else:
        _check_same(group, operation, form, a_bits, b_bits, w.index, scale=scaled)
    if form.from_registers:
        operation.fragments[quarter] = stack([x.settle() if x.__class__ is Pending else x for x in a])  # type: ignore[union-attr]
    contents = _extend(member, form, operation, registers, scaled=scaled)
    group.issued[quarter] = number + 1
    operation.arrived |= 1 << quarter
    machine = w.cta.launch.machine
    if machine.monitor is not None:
        machine.monitor.wgmma_issued(w, group, operation, form.at)
    if operation.arrived == 0xF:
        del group.open[number]
        machine.asynchronous.submit(("wgmma", w.cta, group.first), lambda: group.finish(operation), what=form.name)
    return contents


def _extend(
    member: WarpgroupMember, form: WgmmaForm, operation: WgmmaOperation, registers: tuple[Any, ...], *, scaled: bool
) -> list[Any] | None:
    """Add an operation to the accumulator that the registers hold; return their new contents, None if unchanged."""
    old, in_place = _accumulator_of(member, form, registers)
    if old is not None and old.touched == member.fences:
        member.warp.cta.launch.report(
            "wgmma", f"{form.name}: its accumulator was read after the last wgmma.fence", hint=_FENCE_HINT
        )
    if old is not None and in_place and not form.copied:
        if scaled:
            old.extend(operation)
        else:
            old.restart(operation)
        return None
    start: Sequence[Bits] | None = None
    earlier: list[WgmmaOperation] = []
    if scaled and old is None:
        start = [value.settle() if value.__class__ is Pending else value for value in registers]
    elif scaled and old is not None:
        start = old.values
        if start is None:
            start, earlier = old.start, old.operations
    new = WarpAccumulator(member, form.accumulator, len(registers), start)
    new.operations = [*earlier, operation]
    return new.tokens


def _accumulator_of(
    member: WarpgroupMember, form: WgmmaForm, registers: tuple[Any, ...]
) -> tuple[WarpAccumulator | None, bool]:
    """Return the accumulator that the registers hold, and whether they hold its tokens (else its settled values)."""
    head = registers[0]
    if head.__class__ is Pending:
        source = head.source
        if (
            isinstance(source, WarpAccumulator)
            and source.member is member
            and source.accumulator is form.accumulator
            and source.tokens == list(registers)
        ):
            return source, True
        return None, False
    settled = member.settled
    if (
        settled is not None
        and settled.values is not None
        and settled.accumulator is form.accumulator
        and len(settled.values) == len(registers)
        and all(value is register for value, register in zip(settled.values, registers, strict=True))
    ):
        return settled, False
    return None, False


def _check_whole_warp(mask: int, name: str) -> None:
    if mask != FULL:
        raise Fault("wgmma", f"{name}: executed by lanes {mask:#010x}; .aligned requires all 32 of the warp")


def _uniform(value: Bits | Predicate, what: str, form: WgmmaForm) -> int:
    if isinstance(value, int):
        return value
    common = uniform(value, FULL)
    if common is None:
        raise Fault("wgmma", f"{form.name}: {what} differs between the lanes of the warp")
    return common


def _check_fences(member: WarpgroupMember, form: WgmmaForm) -> None:
    if member.fences and not form.unfenced:
        return
    report = member.warp.cta.launch.report
    if not member.fences:
        report(
            "wgmma",
            f"{form.name} of warp {member.warp.index} comes before any wgmma.fence",
            hint="execute a wgmma.fence before the first wgmma.mma_async (warpgroup.fence())",
        )
    if form.unfenced:
        report(
            "wgmma",
            f"{form.name} uses register {form.unfenced}, which is written with no wgmma.fence in between",
            hint=_FENCE_HINT,
        )


def _check_same(
    group: Warpgroup, operation: WgmmaOperation, form: WgmmaForm, a_bits: int | None, b_bits: int, warp: int, *,
    scale: bool,
) -> None:  # fmt: skip
    """Raise Fault unless a warp issues the operation that others of its warpgroup issued."""
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

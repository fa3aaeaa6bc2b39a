"""Instructions that control the grid, the register file and the thread: ``griddepcontrol``, ``setmaxnreg``,
``nanosleep``, ``trap``, ``brkpt``, ``pmevent``.

- ``griddepcontrol`` (PTX ISA): launches run one after the other here, so every grid that this one depends on is
  complete, and ``.wait`` and ``.launch_dependents`` are counted no-ops; repeating them is legal. A launch that was let
  start early and in which nobody waits is a finding (``Session``); ``races.overlap`` looks at each access.
- ``setmaxnreg`` (PTX ISA): a multiple of 8 from 24 to 256, in all warps of a warpgroup (a finding if not). The ISA
  wants the very same instruction; that each specialised warp may execute its own, and with its own count, rests on
  NVIDIA's kernels. ``.dec`` must not raise and ``.inc`` must not lower the count (findings). ``.inc`` waits until the
  CTA's pool holds the registers that it takes; the pool is known if the launch knows the kernel's registers a thread
  (from ``.maxnreg``, or from the CUBIN of a kernel whose registers are bounded), else nothing waits. Warps that have
  ended give theirs back: the ISA does not say, and a wait for them would be a deadlock that no device is known to have.
- ``nanosleep``: any duration from 0 is legal; it does not sleep.
- ``trap`` and ``brkpt`` are faults (no debugger is there). ``pmevent`` is counted.

Counters: ``griddepcontrol.wait``, ``griddepcontrol.launch_dependents``, ``setmaxnreg``, ``nanosleep``, ``pmevent`` (all
of instructions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.cta import Cta

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Group, Warp

__all__ = ["BLOCKING", "LOWERINGS", "RegisterPool"]

_GROUP = 4
"""Warps of a warpgroup."""


class RegisterPool:
    """The registers of a CTA that its warps hand to each other: ``cta.unit(RegisterPool)``.

    Attributes:
        count: Registers a thread of each warp, None while unknown.
        free: Registers in the pool, None if unknown.
        executed: By warp, how many ``setmaxnreg`` it has executed.
    """

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.waiters: list[Group] = []
        launch = cta.launch
        known = launch.registers_per_thread
        declared = launch.kernel.directives.get("maxnreg")
        if known is None and declared is not None and declared.isdigit():
            known = int(declared)
        self.count: list[int | None] = [known] * len(cta.warps)
        self.free: int | None = None if known is None else 0
        self.executed = [0] * len(cta.warps)

    def suspicion(self) -> int:
        """Registers do not come later: a wait for them is the cause of a deadlock, never a victim of it."""
        return 0

    def waiting_for(self) -> str:
        """What the pool holds and who has how much."""
        held = ", ".join(f"warp {index} {count}" for index, count in enumerate(self.count))
        return f"registers of the CTA's pool, which holds {self.free}; registers a thread: {held}"

    def set(self, w: Warp, count: int, *, grow: bool) -> bool | None:
        """Change a warp's registers a thread; None while the pool has too few."""
        before = self.count[w.index]
        what = f"setmaxnreg.{'inc' if grow else 'dec'} {count}"
        change = 0 if before is None else (count - before) * 32
        if change < 0 if grow else change > 0:
            self.cta.launch.report(
                "setmaxnreg",
                f"{what}: the warp has {before} registers a thread, so this does not "
                f"{'increase' if grow else 'decrease'} them, which is undefined",
            )
        elif self.free is not None:
            if change > self.free:
                w.wait_for(self)
                return None
            self.free -= change
        self.count[w.index] = count
        self.executed[w.index] += 1
        self.cta.launch.counters["setmaxnreg"] += 1
        self.cta.launch.machine.changes += 1
        self._wake()
        return True

    def _wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for group in waiters:
            group.wake()

    def warp_exited(self, w: Warp) -> None:
        """A warp has ended: its registers are free."""
        count = self.count[w.index]
        if count is not None and self.free is not None:
            self.free += count * 32
            self.count[w.index] = 0
            self._wake()

    def at_exit(self) -> None:
        """Report warpgroups of which only some warps executed a setmaxnreg."""
        for start in range(0, len(self.executed), _GROUP):
            group = self.executed[start : start + _GROUP]
            if len(set(group)) > 1:
                said = ", ".join(f"warp {start + i} {done}" for i, done in enumerate(group))
                self.cta.launch.report(
                    "setmaxnreg",
                    f"not all warps of one warpgroup executed as many setmaxnreg instructions: {said} of them",
                    hint="a setmaxnreg must be executed by all warps of the warpgroup, or it is undefined",
                )


def set_registers(w: Warp, count: int, grow: bool) -> bool | None:
    """setmaxnreg: True, or None while it waits."""
    return w.cta.unit(RegisterPool).set(w, count, grow=grow)


def count(w: Warp, name: str) -> None:
    """An instruction without effect but a counter."""
    w.cta.launch.counters[name] += 1


def wait_for_grids(w: Warp, mask: int, at: int) -> None:
    """griddepcontrol.wait."""
    count(w, "griddepcontrol.wait")
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.grid_waited(w, mask, at)


def trap(what: str) -> None:
    """Raises the fault of a trap."""
    raise Fault(
        "trap",
        f"the kernel executed {what}",
        hint="a compiler puts a trap behind a failed assertion or a branch that it holds to be unreachable",
    )


# ---- lowering ----------------------------------------------------------------------------------------------------


def _griddepcontrol(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    action = m.one("wait", "launch_dependents")
    m.end(0)
    if action == "wait":
        e.line(e.call(wait_for_grids, "w", e.mask, str(e.at)))
    else:
        e.line(e.call(count, "w", repr(f"griddepcontrol.{action}")))


def _setmaxnreg(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    action = m.one("inc", "dec")
    for part in ("sync", "aligned", "u32"):
        m.one(part)
    (number,) = m.end(1)
    if not isinstance(number, Immediate) or not 24 <= number.value <= 256 or number.value % 8:
        raise Unsupported(f"{ins.opcode}: the count must be a constant multiple of 8 from 24 to 256")
    name = e.temporary(e.call(set_registers, "w", str(number.value), str(action == "inc")))
    e.park_if_none(name)


def _nanosleep(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.one("u32")
    (time,) = m.end(1)
    e.value(time, 32)
    e.line(e.call(count, "w", "'nanosleep'"))


def _trap(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.end(0)
    e.line(e.call(trap, repr(ins.opcode)))


def _pmevent(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.maybe("mask")
    m.end(1)
    e.line(e.call(count, "w", "'pmevent'"))


LOWERINGS: Mapping[str, Lowering] = {
    "griddepcontrol": _griddepcontrol,
    "setmaxnreg": _setmaxnreg,
    "nanosleep": _nanosleep,
    "trap": _trap,
    "brkpt": _trap,
    "pmevent": _pmevent,
}
BLOCKING = frozenset({"setmaxnreg"})

"""Control instructions: ``griddepcontrol``, ``setmaxnreg``, ``nanosleep``, ``trap``, ``brkpt``, ``pmevent``.

- ``griddepcontrol`` (PTX ISA, "griddepcontrol"): launches run one after the other here, so all prerequisite grids are
  complete, and ``.wait`` and ``.launch_dependents`` are counted no-ops; repeating them is legal. ``Session`` reports a
  launch that may start early and never waits; ``races.launch_overlap`` checks each access.
- ``setmaxnreg`` (PTX ISA, "setmaxnreg"): a multiple of 8 from 24 to 256, in all warps of a warpgroup (else a finding).
  The ISA requires the same instruction in all of them; as in NVIDIA's kernels, specialised warps may execute different
  ones with different counts. ``.dec`` must not raise and ``.inc`` must not lower the count (findings). ``.inc`` waits
  until the CTA's pool has enough registers. The pool is modelled if the registers per thread are known: from a CUBIN
  in which ptxas has kept ``setmaxnreg`` (``driver.cubin``), or from ``.maxnreg`` of a module without one; otherwise no
  warp waits. A warp that ends returns its registers: the ISA does not specify this, but no device is known to deadlock
  otherwise.
- ``nanosleep``: any duration is legal; it does not sleep.
- ``trap`` and ``brkpt`` are faults, because no debugger is attached. ``pmevent`` is counted.

Counters (of instructions): ``griddepcontrol.wait``, ``griddepcontrol.launch_dependents``, ``setmaxnreg``,
``nanosleep``, ``pmevent``.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp

_GROUP = 4
"""Warps of a warpgroup."""
_UNIT = 8
"""Registers of each thread of a warp are allocated in this unit: a kernel of 255 starts with 256."""


class RegisterPool:
    """Pool of registers that the warps of a CTA release and acquire: ``cta.unit(RegisterPool)``.

    Attributes:
        count: Registers per thread of each warp, None while unknown.
        free: Registers in the pool, None if unknown.
        executed: By warp, the instructions of its executed ``setmaxnreg``.
    """

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.waiters: list[Group] = []
        known = cta.launch.registers_per_thread
        if known is not None:
            known += -known % _UNIT
        self.count: list[int | None] = [known] * len(cta.warps)
        self.free: int | None = None if known is None else 0
        self.executed: list[list[int]] = [[] for _ in cta.warps]

    def suspicion(self) -> int:
        """Return 0: a deadlocked wait for registers is a cause, never a consequence."""
        return 0

    def waiting_for(self) -> str:
        """Describe the pool and the registers of each warp."""
        held = ", ".join(f"warp {index} {count}" for index, count in enumerate(self.count))
        return f"registers of the CTA's pool, which has {self.free}; registers per thread: {held}"

    def set(self, w: Warp, count: int, at: int, *, grow: bool) -> bool | None:
        """Change a warp's registers per thread; return None while the pool has too few."""
        before = self.count[w.index]
        what = f"setmaxnreg.{'inc' if grow else 'dec'} {count}"
        change = 0 if before is None else (count - before) * 32
        if change < 0 if grow else change > 0:
            self.cta.launch.report(
                "setmaxnreg",
                f"{what}: the warp has {before} registers per thread, so this does not "
                f"{'increase' if grow else 'decrease'} them, which is undefined",
            )
        elif self.free is not None:
            if change > self.free:
                w.wait_for(self)
                return None
            self.free -= change
        self.count[w.index] = count
        self.executed[w.index].append(at)
        self.cta.launch.counters["setmaxnreg"] += 1
        self.cta.launch.machine.changes += 1
        wake_all(self)
        return True

    def warp_exited(self, w: Warp) -> None:
        """Return the registers of a warp that has ended to the pool."""
        count = self.count[w.index]
        if count is not None and self.free is not None:
            self.free += count * 32
            self.count[w.index] = 0
            wake_all(self)

    def at_exit(self) -> None:
        """Report warpgroups whose warps executed different numbers of setmaxnreg."""
        for start in range(0, len(self.executed), _GROUP):
            group = self.executed[start : start + _GROUP]
            if len(set(map(len, group))) > 1:
                numbers = ", ".join(f"warp {start + i} {len(executed)}" for i, executed in enumerate(group))
                most = max(range(len(group)), key=lambda i: len(group[i]))
                self.cta.launch.report(
                    "setmaxnreg",
                    f"the warps of one warpgroup executed different numbers of setmaxnreg instructions: {numbers}",
                    hint="execute each setmaxnreg in all warps of the warpgroup; otherwise it is undefined",
                    where=self.cta.launch.where(self.cta.warps[start + most], group[most][-1]),
                )


def set_registers(w: Warp, count: int, grow: bool, at: int) -> bool | None:
    """Execute setmaxnreg; return True, or None after the group was suspended."""
    return w.cta.unit(RegisterPool).set(w, count, at, grow=grow)


def count(w: Warp, name: str) -> None:
    """Count an instruction without other effect."""
    w.cta.launch.counters[name] += 1


def wait_for_grids(w: Warp, mask: int, at: int) -> None:
    """Execute griddepcontrol.wait."""
    count(w, "griddepcontrol.wait")
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.grid_waited(w, mask, at)


def trap(w: Warp, what: str) -> None:
    """Raise the fault of a trap."""
    hint = "compilers emit a trap after a failed assertion and in branches that they assume to be unreachable"
    if w.cta.launch.lacks_workspace:
        hint = (
            "grid.sync() traps where the launch is not cooperative (cudaLaunchCooperativeKernel, "
            "cudaLaunchAttributeCooperative, nvfp4 run --cooperative); else " + hint
        )
    raise Fault("trap", f"the kernel executed {what}", hint=hint)


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
    name = e.temporary(e.call(set_registers, "w", str(number.value), str(action == "inc"), str(e.at)))
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
    e.line(e.call(trap, "w", repr(ins.opcode)))


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

"""What a stop shows of warps, registers, barriers and pending work: as data, and as text."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_nvfp4.sim.debug.memory import writer_text
from pytest_nvfp4.sim.debug.source import PTX, line_of
from pytest_nvfp4.sim.debug.values import is_float, is_unset, register_data, register_text, runs
from pytest_nvfp4.sim.debug.writes import WriteLog
from pytest_nvfp4.sim.lanes import FULL, lanes
from pytest_nvfp4.sim.ptx.roles import results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.source import quoted
from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile
from pytest_nvfp4.sim.sync.named import NamedBarriers

_PTX_CHARACTERS = 160
Data = dict[str, Any]


def lanes_text(mask: int) -> str:
    """Return a mask of lanes as text."""
    return "all lanes" if mask == FULL else f"lanes {runs(list(lanes(mask)))}" if mask else "no lane"


def place_data(w: Warp, group: Group) -> Data:
    """Return where a group of lanes is."""
    kernel = w.cta.launch.kernel
    data: Data = {
        "kernel": kernel.name, "cta": list(w.cta.index), "warp": w.index, "lanes": list(lanes(group.mask)),
    }  # fmt: skip
    if group.pc >= len(kernel.instructions):
        return data
    instruction = kernel.instructions[group.pc]
    line = line_of(instruction)
    source = {} if line.file == PTX else {"file": line.file, "line": line.number}
    return {**data, **source, "ptx_line": instruction.ptx_line, "instruction": instruction.text}


def source_text(instruction: Instruction, around: int) -> str:
    """Return the lines around an instruction's line, and the instruction."""
    line = line_of(instruction)
    text = instruction.text
    text = text if len(text) <= _PTX_CHARACTERS else f"{text[: _PTX_CHARACTERS - 4]} ..."
    shown = []
    if line.file != PTX and linecache.getline(line.file, line.number):
        last = len(linecache.getlines(line.file))
        for number in range(max(1, line.number - around), min(last, line.number + around) + 1):
            mark = "->" if number == line.number else "  "
            shown.append(f"{mark} {number:>4}  {linecache.getline(line.file, number).rstrip()}")
    return "\n".join([*shown, f"PTX line {instruction.ptx_line}: {text}"])


def definitions(kernel: Kernel) -> dict[int, Instruction]:
    """Return the first instruction that writes each register, by slot."""
    found: dict[int, Instruction] = {}
    for instruction in kernel.instructions:
        for register in results(instruction):
            found.setdefault(register.slot, instruction)
    return found


def registers_data(
    w: Warp, mask: int, slots: Iterable[int], names: Mapping[int, str], defined: Mapping[int, Instruction]
) -> list[Data]:
    """Return registers: the author's name, if it is known, the value in the lanes of a mask, and the defining line."""
    kernel, memory = w.cta.launch.kernel, w.cta.launch.machine.memory
    shown = []
    for slot in slots:
        register, by = kernel.registers[slot], defined.get(slot)
        value = w.registers[slot]
        unset = is_unset(w, slot)
        text = "not written" if unset else register_text(value, mask, floating=is_float(by))
        if register.bits == 64 and isinstance(value, int) and (region := memory.find(value)) is not None:
            text = f"{value:#x}, in {region.place(value)}"
        shown.append(
            {
                "name": names.get(slot),
                "register": register.name,
                "value": None if unset else register_data(value),
                "text": text,
                "defined": str(line_of(by)) if by is not None else None,
            }
        )
    return shown


def registers_text(registers: Iterable[Data]) -> Iterator[str]:
    """Yield a line for each register."""
    for each in registers:
        name = f"{each['name']} = " if each["name"] else ""
        yield f"  {name}{each['text']}   [{each['register']}, defined at {each['defined']}]"


def used_slots(kernel: Kernel, at: int) -> list[int]:
    """Return the registers that the instructions of a source line around a place use, in order."""
    line, code = line_of(kernel.instructions[at]), kernel.instructions
    low = high = at
    while low > 0 and line_of(code[low - 1]) == line:
        low -= 1
    while high + 1 < len(code) and line_of(code[high + 1]) == line:
        high += 1
    registers = [r for each in code[low : high + 1] for r in (*sources(each), *results(each))]
    return list(dict.fromkeys(register.slot for register in registers))


def warps_data(cta: Cta) -> list[Data]:
    """Return where each group of lanes of a CTA is, and what it waits for."""
    code = cta.launch.kernel.instructions
    found: list[Data] = []
    for w in cta.warps:
        for group in w.groups:
            waits = group.waiting.waiting_for() if group.waiting is not None else None
            at = quoted(code[group.pc]) if group.pc < len(code) else "the end"
            found.append({"warp": w.index, "lanes": list(lanes(group.mask)), "at": at, "waits_for": waits})
        if not w.groups:
            found.append({"warp": w.index, "lanes": [], "at": None, "waits_for": None})
    return found


def warps_text(cta: Cta) -> str:
    """Return the warps of a CTA as text."""
    lines = [f"warps of CTA {cta.index}:"]
    for each in warps_data(cta):
        part = "" if len(each["lanes"]) in (0, 32) else f" lanes {runs(each['lanes'])}"
        state = "has ended" if each["at"] is None else f"at {each['at']}"
        waits = f", waits for {each['waits_for']}" if each["waits_for"] else ""
        lines.append(f"  warp {each['warp']}{part} {state}{waits}")
    return "\n".join(lines)


def barriers_data(cta: Cta) -> list[Data]:
    """Return the barriers of a CTA and of its cluster: their state, and the warps that wait."""
    found: list[Data] = []

    def add(kind: str, name: str, state: str, waiters: Iterable[Group], **more: Any) -> None:
        waiting = [
            {"cta": list(g.warp.cta.index), "warp": g.warp.index, "at": quoted(cta.launch.kernel.instructions[g.pc])}
            for g in waiters
        ]
        found.append({"kind": kind, "name": name, "state": state, "waiting": waiting, **more})

    if (file := cta.units.get(MbarrierFile)) is not None:
        for index, barrier in sorted(file.barriers.items()):
            exact = {"byte": index, "phase": barrier.phase, "pending": barrier.pending, "count": barrier.count}
            made = f"initialised at {quoted(barrier.made)}" if barrier.made is not None else "initialised"
            add(
                "mbarrier", barrier.name, barrier.state(), barrier.waiters, made=made, bytes_missing=barrier.tx, **exact
            )
    if (named := cta.units.get(NamedBarriers)) is not None:
        for each in named.barriers:
            if each.arrivals or each.partial or each.waiters:
                add("barrier", f"barrier {each.number}", each.waiting_for(), each.waiters)
    if (cluster := cta.cluster.units.get(ClusterBarrier)) is not None and (cluster.arrived or cluster.waiters):
        add("cluster", "the cluster barrier", cluster.waiting_for(), cluster.waiters)
    return found


def barriers_text(cta: Cta) -> str:
    """Return the barriers as text."""
    found = barriers_data(cta)
    if not found:
        return "barriers: none is initialised or in use"
    lines = ["barriers:"]
    alike: dict[tuple[str, str], list[int]] = {}
    for each in found:
        if each["kind"] == "mbarrier" and not each["waiting"]:
            alike.setdefault((each["made"], each["state"]), []).append(each["byte"])
            continue
        lines.append(f"  {each['name']}: {each['state']}")
        waiting = [f"warp {w['warp']} of CTA {tuple(w['cta'])} at {w['at']}" for w in each["waiting"]]
        lines.append(f"    waiting: {'; '.join(waiting) or 'nobody'}")
    for (made, state), places in alike.items():
        name = f"mbarrier{'s' * (len(places) > 1)} at byte {', '.join(map(str, places))}"
        lines.append(f"  {name} ({made}): {state}; nobody waits")
    return "\n".join(lines)


def pending_data(cta: Cta, log: WriteLog) -> Data:
    """Return the asynchronous work that has not completed, and what a tcgen05 pipe has not committed."""
    flights = [{"start": c.start, "bytes": c.size, "what": c.name} for c in cta.shared.in_flight.values()]
    queued = Counter(what or "asynchronous work" for what in cta.launch.machine.asynchronous.pending())
    open_ = Counter(writer_text(cta, writer) for writers in log.uncommitted.values() for writer in writers)
    return {"in_flight": flights, "queued": dict(queued), "uncommitted": dict(open_)}


def pending_text(cta: Cta, log: WriteLog) -> str:
    """Return the pending work as text."""
    data = pending_data(cta, log)
    lines = [f"  in flight to bytes {f['start']}-{f['start'] + f['bytes'] - 1}: {f['what']}" for f in data["in_flight"]]
    lines += [f"  queued: {what} x{count}" for what, count in data["queued"].items()]
    lines += [f"  issued and not committed: {what} x{count}" for what, count in data["uncommitted"].items()]
    if not lines:
        return "pending copies and MMAs: none (the eager schedule completes them at issue; --schedule lazy queues them)"
    return "\n".join(["pending copies and MMAs:", *lines])

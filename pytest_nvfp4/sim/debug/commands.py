"""The debugger's commands: lines of text, each of which returns a text and the same as data."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.sim.debug import memory, views
from pytest_nvfp4.sim.debug.debugger import BARRIER, FAULT, STOPPED, Break, Debugger, Stop, Watch
from pytest_nvfp4.sim.debug.errors import CommandError, UnsetError
from pytest_nvfp4.sim.debug.memory import Tensor, tensor_of
from pytest_nvfp4.sim.debug.values import register_data, register_text, words_text
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.cta import Dim3
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS, Tmem
from pytest_nvfp4.text import clip

_MOST_REGISTERS = 24
_AROUND, _NAME = 3, 60
_NUMBERS = re.compile(r"-?\d+")
HELP = """\
break PLACE            stop at FILE:LINE, at each `barrier` instruction, or at a `fault` (always on)
delete PLACE|all       remove a breakpoint;  breaks: list them
focus X,Y,Z [WARP]     breakpoints are for this CTA, and warp;  focus all: for all
continue, c            run to the next stop
step, s / stepi, si    run this warp to its next line / instruction
next, n                run to another warp's next instruction
where / show           the place / everything that is known here
list [LINES]           source around the place
warp N / cta X,Y,Z     show another warp / CTA (nothing runs);  warps: where all are
registers [all]        the live registers / all that were written
print, p EXPR          tidx + 1, %r5, smem[16], u32[16], f32[%rd1], tmem[0, 5], sA[3, 4]
watch EXPR             stop when the value changes;  unwatch: remove all
barriers, pending      barriers and who waits; copies and MMAs
smem [BYTE [COUNT]]    the map of shared memory, or its words
tmem [COLUMN [COUNT]]  the map of TMEM, or columns of it
tensors                tensors in shared memory and TMEM
tensor NAME [at BASE] [I,J,...]  its elements from a coordinate on
quit, q                end the run"""
_SHORT = {
    "b": "break", "c": "continue", "s": "step", "si": "stepi", "n": "next", "p": "print", "l": "list", "q": "quit",
    "r": "registers", "w": "where", "h": "help",
}  # fmt: skip


class Reply(NamedTuple):
    """What a command answers: text and data, and whether the launch continues."""

    text: str
    data: dict[str, Any]
    runs: bool = False


def execute(debugger: Debugger, line: str) -> Reply:
    """Execute a command at a stop. Raises Fault by which ``quit`` ends the launch."""
    word, _, rest = line.strip().partition(" ")
    word, rest = _SHORT.get(word, word), rest.strip()
    command = _COMMANDS.get(word)
    if command is None:
        return Reply(f"{word!r} is no command; help lists them", {"error": f"{word!r} is no command"})
    assert debugger.stop is not None
    try:
        return command(debugger, debugger.stop, rest)
    except (CommandError, LayoutError) as error:
        return Reply(str(error), {"error": str(error)})
    except Fault as fault:
        if fault.kind == STOPPED:
            raise
        return Reply(fault.message, {"error": fault.message})


def _numbers(text: str, what: str, count: int | None = None) -> tuple[int, ...]:
    parts = [part for part in re.split(r"[\s,]+", text.strip("()[] ")) if part]
    if not all(map(_NUMBERS.fullmatch, parts)) or (count is not None and len(parts) != count):
        raise CommandError(f"{text!r} is not {what}")
    return tuple(map(int, parts))


def _cta(text: str) -> Dim3:
    numbers = _numbers(text, "a CTA: write X,Y,Z")
    return cast("Dim3", (*numbers, 0, 0)[:3])


# ---- where to stop -------------------------------------------------------------------------------------------------


def _break(debugger: Debugger, _: Stop, place: str) -> Reply:
    if not place:
        raise CommandError("break where? Write FILE:LINE, barrier or fault")
    problem = None
    if place not in (BARRIER, FAULT):
        try:
            debugger.lines.at(place)
        except CommandError as error:
            if not place.rpartition(":")[2].isdecimal():
                raise
            problem = f"{error}; the breakpoint is kept for later launches"
    if all(each.place != place for each in debugger.breaks):
        debugger.breaks.append(Break(place))
    debugger.resolve()
    reply = _breaks(debugger, _, "")
    return Reply(problem or f"breakpoint {place}", {**reply.data, **({"note": problem} if problem else {})})


def _breaks(debugger: Debugger, _: Stop, __: str) -> Reply:
    listed = [{"place": b.place, "hits": b.hits} for b in debugger.breaks]
    return Reply("\n".join(map(str, debugger.breaks)) or "no breakpoints", {"breaks": listed})


def _delete(debugger: Debugger, stop: Stop, place: str) -> Reply:
    kept = [] if place == "all" else [each for each in debugger.breaks if each.place != place]
    if len(kept) == len(debugger.breaks):
        raise CommandError(f"there is no breakpoint {place!r}; breaks lists them")
    debugger.breaks[:] = kept
    debugger.resolve()
    return _breaks(debugger, stop, "")


def _focus(debugger: Debugger, _: Stop, text: str) -> Reply:
    if text in ("", "all"):
        debugger.cta = debugger.warp = None
    else:
        place, *warps = text.split()
        debugger.cta = None if place == "-" else _cta(place)
        debugger.warp = _numbers(warps[0], "a warp", 1)[0] if warps else None
    cta = "all CTAs" if debugger.cta is None else f"CTA {debugger.cta}"
    warp = "" if debugger.warp is None else f" warp {debugger.warp}"
    data = {"cta": list(debugger.cta) if debugger.cta else None, "warp": debugger.warp}
    return Reply(f"breakpoints are for {cta}{warp}", {"focus": data})


def _watch(debugger: Debugger, stop: Stop, text: str) -> Reply:
    if not text:
        return Reply("\n".join(f"{w.text}: {w.last}" for w in debugger.watches) or "nothing is watched", {})
    watch = Watch(stop.warp, text, "")
    with contextlib.suppress(UnsetError):  # its first write is a change
        debugger.value(text, stop.warp)
    watch.last = debugger.watched(watch)
    debugger.watches.append(watch)
    return Reply(f"{text} is watched: {watch.last}", {"watch": text, "value": watch.last})


def _unwatch(debugger: Debugger, _: Stop, __: str) -> Reply:
    debugger.watches.clear()
    return Reply("nothing is watched", {})


# ---- running -------------------------------------------------------------------------------------------------------


def _continue(_: Debugger, __: Stop, ___: str) -> Reply:
    return Reply("", {}, runs=True)


def _step(debugger: Debugger, _: Stop, __: str) -> Reply:
    debugger.step(lines=True)
    return Reply("", {}, runs=True)


def _stepi(debugger: Debugger, _: Stop, __: str) -> Reply:
    debugger.step(lines=False)
    return Reply("", {}, runs=True)


def _next(debugger: Debugger, _: Stop, __: str) -> Reply:
    debugger.next_warp()
    return Reply("", {}, runs=True)


def _quit(_: Debugger, __: Stop, ___: str) -> Reply:
    raise Fault(STOPPED, "the debugger ended the run")


# ---- looking -------------------------------------------------------------------------------------------------------


def where(debugger: Debugger, stop: Stop, _: str = "", *, around: int = _AROUND) -> Reply:
    """Return the place of a stop, its reason, its source and the registers of its statement."""
    w, group = stop.warp, stop.group
    place = views.place_data(w, group)
    code = w.cta.launch.kernel.instructions
    lines = [
        f"stopped: {stop.reason}",
        f"{clip(w.cta.launch.kernel.name, _NAME)}, CTA {w.cta.index}, warp {w.index}, {views.lanes_text(group.mask)}",
    ]
    data: dict[str, Any] = {"stop": {"reason": stop.reason, **place}}
    if stop.fault is not None:
        fault = stop.fault
        at = fault.where.at if fault.where is not None else None
        lines += [fault.message, *([f"  at {debugger.grid.place(at)}"] if at is not None else [])]
        lines += [*(f"  {note}" for note in fault.notes), *([f"look at: {fault.hint}"] if fault.hint else [])]
        data["fault"] = {"kind": fault.kind, "message": fault.message, "notes": list(fault.notes), "hint": fault.hint}
    if group.pc < len(code):
        lines.append(views.source_text(code[group.pc], around))
        slots = views.used_slots(w.cta.launch.kernel, group.pc)[:_MOST_REGISTERS]
        registers = views.registers_data(w, group.mask, slots, debugger.names, debugger.defined)
        registers = [each for each in registers if each["value"] is not None]
        lines += ["registers of this line:", *views.registers_text(registers)] if registers else []
        data["registers"] = registers
    return Reply("\n".join(lines), data)


def show(debugger: Debugger, stop: Stop, _: str = "") -> Reply:
    """Return everything that a stop shows."""
    parts = [where(debugger, stop)]
    for command in (_registers, _smem, _tmem, _tensors, _barriers, _warps, _pending):
        try:
            parts.append(command(debugger, stop, ""))
        except (CommandError, LayoutError, Fault) as error:
            parts.append(Reply(str(error), {}))
    data: dict[str, Any] = {}
    for part in parts:
        data = {**part.data, **data}
    return Reply("\n".join(part.text for part in parts), data)


def _list(debugger: Debugger, stop: Stop, text: str) -> Reply:
    around = _numbers(text, "a number of lines", 1)[0] if text else 10
    code = debugger.grid.kernel.instructions
    shown = views.source_text(code[stop.group.pc], min(around, 1000)) if stop.group.pc < len(code) else "the end"
    return Reply(shown, {"source": shown})


def _registers(debugger: Debugger, stop: Stop, text: str) -> Reply:
    w, program = stop.warp, debugger.grid.program
    live = program.liveness.live_before(stop.group.pc)
    slots = [slot for slot in sorted(live) if slot in debugger.names]
    if text == "all":
        slots = list(range(len(w.registers)))
    found = views.registers_data(w, stop.group.mask, slots, debugger.names, debugger.defined)
    found = [each for each in found if each["value"] is not None]
    title = "registers:" if text == "all" else "live registers with a name of the author's:"
    others = f"  {len(live) - len(slots)} live registers have no known name (registers all, print %r1)"
    lines = [title, *views.registers_text(found), *([others] if text != "all" and len(live) > len(slots) else [])]
    return Reply("\n".join(lines), {"named" if text != "all" else "registers": found})


def _print(debugger: Debugger, stop: Stop, text: str) -> Reply:
    value = debugger.value(text, stop.warp)
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    if isinstance(value, str | float):
        return Reply(f"{text} = {value}", {"value": value})
    if isinstance(value, tuple):
        return Reply(f"{text} = {value}", {"value": [register_data(each) for each in value]})
    if not hasattr(value, "__array__") and not isinstance(value, int):
        raise CommandError(f"{text} needs an index: {text}[0]")
    return Reply(f"{text} = {register_text(value, stop.group.mask)}", {"value": register_data(value)})


def _warp(debugger: Debugger, stop: Stop, text: str) -> Reply:
    debugger.select(stop.warp.cta.index, _numbers(text, "a warp", 1)[0])
    assert debugger.stop is not None
    return where(debugger, debugger.stop)


def _select_cta(debugger: Debugger, _: Stop, text: str) -> Reply:
    debugger.select(_cta(text), 0)
    assert debugger.stop is not None
    return where(debugger, debugger.stop)


def _warps(_: Debugger, stop: Stop, __: str) -> Reply:
    return Reply(views.warps_text(stop.warp.cta), {"warps": views.warps_data(stop.warp.cta)})


def _barriers(_: Debugger, stop: Stop, __: str) -> Reply:
    return Reply(views.barriers_text(stop.warp.cta), {"barriers": views.barriers_data(stop.warp.cta)})


def _pending(debugger: Debugger, stop: Stop, _: str) -> Reply:
    cta = stop.warp.cta
    return Reply(views.pending_text(cta, debugger.log), {"pending": views.pending_data(cta, debugger.log)})


def _smem(_: Debugger, stop: Stop, text: str) -> Reply:
    cta = stop.warp.cta
    if not text:
        return Reply(memory.shared_text(cta), {"shared": memory.shared_runs(cta)})
    start, count = (*_numbers(text, "BYTE [COUNT]"), 64)[:2]
    start, stop_at = max(0, start) & ~3, min(cta.shared.size & ~3, max(0, start) + min(max(count, 1), 4096) + 3 & ~3)
    lines, words = [], []
    for low in range(start, stop_at, 16):
        high = min(low + 16, stop_at)
        written = cta.shared.written[low:high]
        words += cta.shared.data[low:high].view("uint32").tolist()
        some = "" if written.all() else "  uninitialised" if not written.any() else "  partly uninitialised"
        lines.append(f"{low:>7}: {words_text(cta.shared.data[low:high].view('uint32'))}{some}")
    data = {"start": start, "words": words, "written": cta.shared.written[start:stop_at].tolist()}
    return Reply("\n".join(lines) or "no such bytes", {"shared_words": data})


def _tmem(_: Debugger, stop: Stop, text: str) -> Reply:
    cta = stop.warp.cta
    if not text:
        return Reply(memory.tmem_text(cta), {"tmem": memory.tmem_runs(cta)})
    column, count = (*_numbers(text, "COLUMN [COUNT]"), 4)[:2]
    if not 0 <= column < COLUMNS:
        raise CommandError(f"TMEM has the columns 0 to {COLUMNS - 1}, not {column}")
    tmem, last = cta.unit(Tmem), min(COLUMNS, column + min(max(count, 1), 32))
    tmem.settle(column, last - column)
    lines, found = [], []
    for lane in range(tmem.data.shape[1]):
        written = [bool(tmem.full[each] or tmem.some[each, lane]) for each in range(column, last)]
        words = tmem.data[column:last, lane].copy()
        found.append([int(word) if there else None for word, there in zip(words, written, strict=True)])
        if lane < 8:
            lines.append(f"lane {lane:>3}: {words_text(words) if all(written) else f'uninitialised: {written}'}")
    return Reply("\n".join([*lines, "..."]), {"tmem_words": {"column": column, "by_lane": found}})


def _layout(debugger: Debugger, _: Stop, text: str) -> Reply:
    name, *rest = text.split(" ", 1)
    tensor = tensor_of(name, "".join(rest))
    if tensor is not None:
        debugger.tensors[name] = tensor
    return Reply("", {"tensor": name if tensor is not None else None})


def _tensors(debugger: Debugger, stop: Stop, _: str) -> Reply:
    known = debugger.known_tensors(stop.warp)
    lines = ["tensors by their layouts:"] if known else ["tensors: none is known"]
    for tensor in known.values():
        if tensor.base is not None:
            lines.append(tensor.text(stop.warp.cta))
    rest = [f"{t.name} ({t.size})" for t in known.values() if t.base is None]
    if rest:
        lines.append(f"  the place of these is not known (tensor NAME at BASE): {', '.join(rest)}")
    listed = [{"name": t.name, "type": t.type, "space": t.info.space, "base": t.base} for t in known.values()]
    return Reply("\n".join(lines), {"tensors": listed})


def _tensor(debugger: Debugger, stop: Stop, text: str) -> Reply:
    found = re.fullmatch(r"(\S+)(?:\s+at\s+(\d+))?(?:\s+([\d,\s()\[\]]+))?", text)
    known = debugger.known_tensors(stop.warp)
    if found is None or found[1] not in known:
        raise CommandError(f"{text!r}: write NAME [at BASE] [I,J]; tensors: {', '.join(known) or 'none is known'}")
    tensor = known[found[1]]
    if found[2] is not None:
        tensor = debugger.tensors[tensor.name] = Tensor(tensor.name, tensor.type, int(found[2]))
    shown = tensor.text(stop.warp.cta, _numbers(found[3] or "", "a coordinate: write I,J"))
    return Reply(shown, {"tensor": tensor.name, "base": tensor.base, "modes": list(tensor.modes()), "text": shown})


def _help(_: Debugger, __: Stop, ___: str) -> Reply:
    return Reply(HELP, {})


_COMMANDS: dict[str, Callable[[Debugger, Stop, str], Reply]] = {
    "break": _break, "breaks": _breaks, "delete": _delete, "focus": _focus, "watch": _watch, "unwatch": _unwatch,
    "continue": _continue, "step": _step, "stepi": _stepi, "next": _next, "quit": _quit, "where": where, "show": show,
    "list": _list, "registers": _registers, "print": _print, "warp": _warp, "cta": _select_cta, "warps": _warps,
    "barriers": _barriers, "pending": _pending, "smem": _smem, "tmem": _tmem, "layout": _layout, "tensors": _tensors,
    "tensor": _tensor, "help": _help,
}  # fmt: skip

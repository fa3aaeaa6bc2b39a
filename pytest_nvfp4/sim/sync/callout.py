"""Calls of functions that the driver provides: ``vprintf`` and ``__assertfail``.

``st.param`` stores the parameters of a call in the thread's local memory. The packed arguments of ``vprintf`` are in
local memory too, each aligned to its size (CUDA C++ Programming Guide, "Formatted Output": 4 bytes for an int, 8 for a
long, a pointer or a double). Lanes print in lane order to ``launch.printed``. The result is the number of arguments, or
-1 without a format. Formats are those of C; ``%n``, ``%a`` and wide characters are unsupported. ``__assertfail`` is a
fault with the message, the file and the line of the first lane that failed.

Counters: ``printf`` (of threads).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW, LocalMemory
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Symbol, Vector
from pytest_nvfp4.sim.run.warp import Warp

_HIGH = ~0xFFFF_FFFF & (1 << 64) - 1
_LONGEST = 4096
_DIRECTIVE = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?(?P<size>hh|h|ll|l|)(?P<type>.)"
)


def format_c(text: str, take: Callable[[str], int | float], string: Callable[[int], str]) -> tuple[str, int]:
    """Format arguments by a C format; return the text and the number of arguments.

    Args:
        take: Returns the next argument, of a ``struct`` type: ``i``, ``I``, ``q``, ``Q`` or ``d``.
        string: Returns the characters at an address.

    Raises:
        Unsupported: a directive that is not modelled.
    """
    taken = 0

    def argument(kind: str) -> int | float:
        nonlocal taken
        taken += 1
        return take(kind)

    def fill(match: re.Match[str]) -> str:
        kind = match["type"]
        if kind == "%":
            return "%"
        flags, width, precision = match["flags"], match["width"], match["precision"]
        if width == "*":
            number = int(argument("i"))
            flags, width = (flags + "-", str(-number)) if number < 0 else (flags, str(number))
        if precision == "*":
            number = int(argument("i"))
            precision = None if number < 0 else str(number)
        long = match["size"] in ("l", "ll")
        if kind in "diouxX":
            signed = kind in "di"
            value = int(argument(("q" if signed else "Q") if long else "i" if signed else "I"))
            value = _narrow(value, match["size"], signed=signed)
            return _integer(value, kind, flags=flags, width=int(width or 0), precision=precision)
        spec = f"%{flags}{width}" + ("" if precision is None else f".{precision or 0}")
        if kind in "eEfFgG":
            real = argument("d")
            # C pads infinities and NaN with blanks, whatever the flags.
            return ((spec if math.isfinite(real) else spec.replace(flags, flags.replace("0", ""), 1)) + kind) % real
        if kind == "c" and not long:
            return f"%{flags.replace('0', '')}{width}c" % chr(int(argument("i")) & 0xFF)
        if kind == "s" and not long:
            return (f"%{flags.replace('0', '')}{width}" + spec[len(flags + width) + 1 :] + "s") % string(
                int(argument("Q"))
            )
        if kind == "p":
            return f"%{flags.replace('0', '')}{width}s" % f"{int(argument('Q')):#x}"
        raise Unsupported(f"vprintf: {match[0]} is not modelled")

    return _DIRECTIVE.sub(fill, text), taken


def _integer(value: int, kind: str, *, flags: str, width: int, precision: str | None) -> str:
    """Format an integer as C's printf does (C11, 7.21.6.1)."""
    digits = {"o": f"{abs(value):o}", "x": f"{abs(value):x}", "X": f"{abs(value):X}"}.get(kind, str(abs(value)))
    if precision is not None:
        digits = "" if not value and not int(precision or 0) else digits.rjust(int(precision or 0), "0")
    sign = ""
    if kind in "di":
        sign = "-" if value < 0 else "+" if "+" in flags else " " if " " in flags else ""
    elif "#" in flags and kind == "o" and not digits.startswith("0"):
        digits = "0" + digits
    elif "#" in flags and kind in "xX" and value:
        sign = "0" + kind
    if "-" in flags:
        return (sign + digits).ljust(width)
    if "0" in flags and precision is None:
        return sign + digits.rjust(width - len(sign), "0")
    return (sign + digits).rjust(width)


def _narrow(value: int, size: str, *, signed: bool) -> int:
    bits = {"h": 16, "hh": 8}.get(size)
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


# ---- functions ---------------------------------------------------------------------------------------------------


def printf(w: Warp, mask: int, result: int | None, arguments: tuple[int, ...]) -> None:
    """Execute vprintf(format, arguments) in each lane."""
    local = w.unit(LocalMemory)
    launch = w.cta.launch
    for lane in lanes(mask):
        pattern, buffer = (int.from_bytes(local.read(place, 8, lane, what="vprintf"), "little") for place in arguments)
        count = -1
        if pattern:
            text, count = format_c(_string(w, lane, pattern), _reader(w, lane, buffer), partial(_string, w, lane))
            launch.printed(text)
        launch.counters["printf"] += 1
        if result is not None:
            local.write(result, (count & 0xFFFF_FFFF).to_bytes(4, "little"), lane, what="vprintf")


def _reader(w: Warp, lane: int, buffer: int) -> Callable[[str], int | float]:
    place = buffer

    def take(kind: str) -> int | float:
        nonlocal place
        size = struct.calcsize(kind)
        place = -(-place // size) * size
        value: int | float = struct.unpack("<" + kind, _bytes(w, lane, place, size))[0]
        place += size
        return value

    return take


def assert_failed(w: Warp, mask: int, _result: int | None, arguments: tuple[int, ...]) -> None:
    """Execute __assertfail(message, file, line, function, character size), which raises a fault."""
    local = w.unit(LocalMemory)
    lane = lanes(mask)[0]
    message, file, function = (
        _string(w, lane, int.from_bytes(local.read(arguments[i], 8, lane, what="__assertfail"), "little"))
        for i in (0, 1, 3)
    )
    line = int.from_bytes(local.read(arguments[2], 4, lane, what="__assertfail"), "little")
    inside = f" in {function}" if function else ""
    raise Fault("assert", f"lane {lane}: assertion failed: {message} ({file}:{line}{inside})")


def _bytes(w: Warp, lane: int, address: int, size: int) -> bytes:
    high = address & _HIGH
    if high == LOCAL_WINDOW:
        return w.unit(LocalMemory).read(address, size, lane, what="vprintf")
    if high == SHARED_WINDOW:
        shared = w.cta.shared
        index = shared.index(address & 0xFFFF_FFFF, size, what="vprintf")
        return shared.read(index, size, what="vprintf").tobytes()
    return w.cta.launch.machine.memory.read(address, size, what="vprintf").tobytes()


def _string(w: Warp, lane: int, address: int) -> str:
    """Return the zero-terminated string at a generic address."""
    if not address:
        return ""
    text = bytearray()
    while len(text) < _LONGEST:
        byte = _bytes(w, lane, address + len(text), 1)
        if byte == b"\0":
            break
        text += byte
    return text.decode("utf-8", "replace")


_FUNCTIONS: Mapping[str, tuple[Callable[[Warp, int, int | None, tuple[int, ...]], None], int]] = {
    "vprintf": (printf, 2),
    "__assertfail": (assert_failed, 5),
}
"""Implementation and number of arguments of each function."""


def _call(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.maybe("uni")
    operands = list(m.end(1, 2, 3))
    results = operands.pop(0) if isinstance(operands[0], Vector) else Vector(())
    if not operands or not isinstance(operands[0], Symbol):
        raise Unsupported(f"{ins.opcode}: only direct calls are modelled")
    name = operands[0].name
    if name not in _FUNCTIONS:
        raise Unsupported(f"call of {name}: only {' and '.join(_FUNCTIONS)} are modelled")
    function, count = _FUNCTIONS[name]
    arguments = operands[1] if len(operands) == 2 else Vector(())
    if not isinstance(arguments, Vector) or not isinstance(results, Vector):
        raise Unsupported(f"call of {name}: an operand list is missing")
    items = (*results.items, *arguments.items)
    if len(arguments.items) != count or len(results.items) > 1 or not all(isinstance(i, Symbol) for i in items):
        raise Unsupported(
            f"call of {name} with {len(arguments.items)} arguments; they must be {count} .param variables"
        )
    result = e.value(results.items[0], 64) if results.items else "None"
    e.line(e.call(function, "w", e.mask, result, e.tuple(arguments, 64)))


LOWERINGS: Mapping[str, Lowering] = {"call": _call}

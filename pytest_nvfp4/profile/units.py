"""Values of reports as numbers in base units: bytes, nanoseconds, hertz, percent and plain counts.

Nsight Compute scales values for display (``Kbyte/block``, ``Ghz``, ``msecond``), with decimal prefixes, and its own
raw names of units differ between versions (``nsecond``, ``ns``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from pytest_nvfp4.profile.result import Metric

_PREFIXES: Final = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "K": 1e3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "": 1.0,
}
_UNIT: Final = re.compile(r"([numKkMGTP]?)(seconds?|sec|s|bytes?|hz|Hz|insts?|cycles?|sectors?|warps?|B)(/.*)?")
_BASE: Final = {"second": "s", "sec": "s", "s": "s", "byte": "byte", "B": "byte", "hz": "Hz", "Hz": "Hz"}
_PER: Final = {"/second": "/s", "/sec": "/s", "/nsecond": "/ns"}
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_GROUPED: Final = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SPACES: Final = re.compile("(?<=\\d)[ \u00a0\u202f'\u2019](?=\\d{3})")
"""What other locales have between groups of digits."""
_FRACTIONS: Final = {
    mark: re.compile(rf"[+-]?(?:\d{{1,3}}(?:{group}\d{{3}})+{mark}\d+|0{mark}\d+|\d+{mark}(?:\d\d?|\d{{4,}}))")
    for mark, group in ((",", r"\."), (r"\.", ","))
}
"""By decimal mark, numbers that have no other one: not ``1,024``, which is 1024 or 1.024."""
_SWAPPED: Final = str.maketrans(",.", ".,")
_MOST_CHARACTERS: Final = 60


def scaled(value: float, unit: str) -> tuple[float, str]:
    """Return a value and its unit in base units: 65.5 ``Kbyte/block`` are 65500 ``byte/block``; times are in ns."""
    match = _UNIT.fullmatch(unit.strip())
    if match is None:
        return value, unit.strip()
    prefix, base, per = match[1], match[2], match[3] or ""
    base = _BASE.get(base, _BASE.get(base.removesuffix("s"), base.removesuffix("s") if len(base) > 1 else base))
    factor = _PREFIXES[prefix]
    if base == "s":
        factor, base = factor * 1e9, "ns"
    return value * factor, base + _PER.get(per, per)


def has_decimal_comma(cells: Iterable[str]) -> bool:
    """Return whether the numbers of a table are of a locale with a decimal comma: one has it, and none has a point.

    ncu prints in the locale of its process, and the same cell may be 1024 or 1.024, so that the table decides.
    """
    comma = False
    for cell in cells:
        text = _SPACES.sub("", cell[:_MOST_CHARACTERS].partition(" (")[0].strip())
        if _FRACTIONS[r"\."].fullmatch(text):
            return False
        comma = comma or _FRACTIONS[","].fullmatch(text) is not None
    return comma


def number(text: str, *, decimal_comma: bool = False) -> float | None:
    """Return the number of a cell: with thousands separators, as hexadecimal, or NaN; None if it is none."""
    text = text.strip()
    if len(text) > _MOST_CHARACTERS:
        return None
    text = _SPACES.sub("", text)
    if decimal_comma:
        text = text.translate(_SWAPPED)
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if _NUMBER.fullmatch(text):
        return float(text)
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        return float(int(text, 16))
    if re.fullmatch(r"(?i)[+-]?(?:nan(?:\(.*\))?|inf|infinity)", text):
        return math.nan
    return None


def metric(value: float | None, unit: str, *, to: str = "") -> Metric:
    """Return a metric in base units, or in the unit ``to`` of a known metric; unknown if the unit does not fit.

    Args:
        value: Its value in ``unit``; None or NaN if there is none.
        to: ``us``, ``MHz``, ``%``, ``byte``, or empty for the base unit.
    """
    if value is None or not math.isfinite(value):
        return Metric.of(value, to or unit)
    value, base = scaled(value, unit)
    plain = base.partition("/")[0] if to else base
    if to == "us" and plain == "ns":
        return Metric.of(value / 1e3, "us")
    if to == "MHz" and base in ("Hz", "cycle/s", "cycle/ns"):
        return Metric.of(value * (1e3 if base == "cycle/ns" else 1e-6), "MHz")
    if to in ("us", "MHz", "byte", "%") and plain != to:
        return Metric.unknown(f"its unit {unit[:40]!r} is not one of {to}", to)
    return Metric.of(value, to or base)

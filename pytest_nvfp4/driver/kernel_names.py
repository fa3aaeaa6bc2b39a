"""Names of kernels in messages."""

from __future__ import annotations

import re
from typing import Final

_DSL: Final = "kernel_cutlass_"
"""Beginning of the names that CuTe DSL gives kernels."""
_ARGUMENTS: Final = re.compile(
    r"_+(?:tensorptr|tensor0|main__|ptr[bfiu]|Tiled|CopyAtom|Ptrgmem|0$|[A-Za-z0-9]*_object_at)"
)
_PART: Final = re.compile(r"(\d+)")
_NUMBER: Final = re.compile(r"L(?:([a-z])|N\w*?E|S\w*?_|\d+[A-Za-z_]\w*?)(n?\d+)E")
"""A number or an enumerator among a template's arguments: its type, and its value with ``n`` for a minus."""
_ANONYMOUS: Final = "_GLOBAL__N_"
_LONGEST: Final = 60


def short_kernel(kernel: str) -> str:
    """Return the user's name of a kernel, to which the DSL adds a prefix, and it and C++ the arguments' types.

    C++ mangles by the Itanium ABI: ``_Z``, or ``_ZN`` in a namespace, and a length before each name. Numbers among the
    arguments of a template are kept, because they tell its instances apart.
    """
    name = _of_cpp(kernel) or _ARGUMENTS.split(kernel.removeprefix(_DSL))[0]
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def _of_cpp(symbol: str) -> str:
    """Return the qualified name of a mangled symbol; empty if it is none."""
    if not symbol.startswith("_Z"):
        return ""
    nested = symbol.startswith("_ZN")
    at = 3 if nested or symbol.startswith("_ZL") else 2
    names = []
    while (length := _PART.match(symbol, at)) is not None:
        at = length.end() + int(length[1])
        if at > len(symbol):
            return ""
        names.append(symbol[length.end() : at])
        if not nested:
            break
    numbers = []
    if symbol[at : at + 1] == "I":
        at += 1
        while (found := _NUMBER.match(symbol, at)) is not None:
            value = found[2].replace("n", "-")
            numbers.append(("false", "true")[int(value)] if found[1] == "b" and value in "01" else value)
            at = found.end()
    more = "" if symbol[at : at + 1] == "E" else ", ..."
    arguments = f"<{', '.join(numbers)}{more}>" if numbers else ""
    return "::".join(name for name in names if not name.startswith(_ANONYMOUS)) + arguments

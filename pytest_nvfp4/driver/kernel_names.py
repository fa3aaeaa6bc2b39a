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
_ANONYMOUS: Final = "_GLOBAL__N_"
_LONGEST: Final = 60


def short_kernel(kernel: str) -> str:
    """Return the user's name of a kernel, to which the DSL adds a prefix, and it and C++ the arguments' types.

    C++ mangles by the Itanium ABI: ``_Z``, or ``_ZN`` in a namespace, and a length before each name. Arguments of
    templates are left out.
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
    return "::".join(name for name in names if not name.startswith(_ANONYMOUS))

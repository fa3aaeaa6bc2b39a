"""Arguments of a Triton kernel that its result depends on and that it changes, from the kernel in TTIR.

The benchmarks of ``triton.autotune`` run a kernel many times on the same memory. What it adds to, or what it reads and
writes, then has another value on a GPU than behind the one run that the simulator executes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_ARGUMENT: Final = re.compile(r'(%\w+): !tt\.(?:ptr|tensordesc)<(?:[^%]*?loc\("(\w+)")?')
_RESULT: Final = re.compile(r"(%\w+)(?::\d+)? = (.*)")
_CARRIED: Final = re.compile(r"(%\w+) = (%[\w#]+)")
_VALUE: Final = re.compile(r"%[\w#]+")
_WHERE: Final = re.compile(r"loc\((#loc\d*)\)$")
_PLACE: Final = re.compile(r'(#loc\d*) = loc\("[^"]*":(\d+):')
_OTHER_PLACE: Final = re.compile(r"(#loc\d*) = loc\(.*?(#loc\d*)\)+$")
_ADDS: Final = re.compile(r"tt\.(?:atomic_rmw (?!exch)\w+, \w+, \w+|descriptor_reduce \w+), (%[\w#]+)")
_ACCESSES: Final = re.compile(r"tt\.(?:descriptor_)?(load|store) (%[\w#]+)")
_ENDS: Final = ("tt.load", "tt.descriptor_load", "tt.atomic_rmw", "tt.atomic_cas")


class Updated(NamedTuple):
    """An argument that a kernel changes in a way that depends on its earlier contents.

    Attributes:
        name: Its name.
        line: The line of the addition or of the store; 0 if it is not known.
        adds: Whether the kernel adds to it by atomic operations; otherwise it loads and stores.
    """

    name: str
    line: int
    adds: bool


def updated(ttir: str) -> list[Updated]:
    """Return the arguments that a kernel adds to, or loads from and stores to, in their order."""
    lines = _lines_of(ttir)
    names: dict[str, str] = {}
    origins: dict[str, frozenset[str]] = {}
    adds: dict[str, int] = {}
    accesses: dict[str, dict[str, int]] = {"load": {}, "store": {}}
    for text in ttir.splitlines():
        line = text.strip()
        if line.startswith("tt.func public"):
            names = {value: name or value[1:] for value, name in _ARGUMENT.findall(line)}
            origins = {value: frozenset((value,)) for value in names}
            continue
        at = lines.get(where[1], 0) if (where := _WHERE.search(line)) else 0
        if found := _ADDS.search(line):
            adds |= dict.fromkeys(origins.get(found[1], ()), at)
        elif found := _ACCESSES.search(line):
            accesses[found[1]] |= dict.fromkeys(origins.get(found[2], ()), at)
        origins |= _results(line, origins)
    return [
        Updated(name, adds.get(value, accesses["store"].get(value, 0)), value in adds)
        for value, name in names.items()
        if value in adds or (value in accesses["load"] and value in accesses["store"])
    ]


def _results(line: str, origins: dict[str, frozenset[str]]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the values that a line defines, with the arguments that they may point to."""
    if "iter_args(" in line:
        carried = _CARRIED.findall(line[line.index("iter_args(") : line.index(" -> ")])
        made = _RESULT.match(line)
        for number, (inner, first) in enumerate(carried):
            yield inner, origins.get(first, frozenset())
            if made:
                yield f"{made[1]}#{number}" if len(carried) > 1 else made[1], origins.get(first, frozenset())
    elif (made := _RESULT.match(line)) and not made[2].startswith(_ENDS):
        yield made[1], frozenset().union(*(origins.get(value, ()) for value in _VALUE.findall(made[2])))


def _lines_of(ttir: str) -> dict[str, int]:
    """Return the line of the kernel's file by location. Of a call, it is that of the caller, which comes last."""
    lines = {name: int(line) for name, line in _PLACE.findall(ttir)}
    others = [found.groups() for text in ttir.splitlines() if (found := _OTHER_PLACE.match(text))]
    for _ in others:
        missing = [(name, of) for name, of in others if name not in lines and of in lines]
        if not missing:
            break
        lines |= {name: lines[of] for name, of in missing}
    return lines

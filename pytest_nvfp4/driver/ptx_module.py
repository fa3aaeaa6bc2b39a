"""Kernels of a PTX text that no CUBIN accompanies: parameter sizes, required threads, static shared memory.

The text may be another compiler's, or hostile: comments are skipped, each expression takes linear time, and what cannot
be read is an error. Registers are unknown, because ptxas decides them.

Source: PTX ISA, "Kernel and Function Directives", "Performance-Tuning Directives", "State Spaces".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from pytest_nvfp4.driver.cubin import CubinKernel

_COMMENT: Final = re.compile(r'//[^\n]*|/\*(?s:.*?(?:\*/|\Z))|"[^"\n]*"')
_ENTRY: Final = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^()]*)\))?([^{};()]*)\{")
_ANY_ENTRY: Final = re.compile(r"\.entry\b")
_PARAM: Final = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.[a-z]+(\d+)\s+(?:\.ptr\b[^\[]*\s)?([\w$]+)(?:\[(\d+)\])?\s*"
)
_THREADS: Final = re.compile(r"\.reqntid\s+(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?")
_CLUSTER: Final = re.compile(r"\.reqnctapercluster\s+(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?")
_SHARED: Final = re.compile(
    r"(\.extern\s+)?(?:\.(?:weak|visible|common)\s+)*\.shared\s+(?:\.align\s+(\d+)\s+)?(?:\.v(\d)\s+)?"
    r"\.[a-z]+(\d+)\s+([\w$%]+)((?:\[\d*\])*)"
)
_NAME: Final = re.compile(r"[\w$%]+")
_BRACE: Final = re.compile(r"[{}]")
_TCGEN05: Final = re.compile(r"\btcgen05\.[\w.:]*\b(cta_group::[12])")


class PtxModuleError(ValueError):
    """A PTX text whose kernels cannot be listed."""


def parse(text: str) -> dict[str, CubinKernel]:
    """Return the kernels of a PTX module, by symbol.

    Raises:
        PtxModuleError: no kernel, one twice, or one whose parameters are not those of PTX.
    """
    text = _COMMENT.sub(" ", text.rstrip("\0"))
    found: dict[str, CubinKernel] = {}
    heads: list[tuple[re.Match[str], int]] = []
    shared: list[tuple[str, int, int]] = []  # declarations outside of every body
    at = 0
    for head in _ENTRY.finditer(text):
        heads.append((head, _end(text, head.end(), head[1])))
    if len(heads) != sum(1 for _ in _ANY_ENTRY.finditer(text)):
        raise PtxModuleError("an .entry has no readable name, parameters and body")
    for head, end in heads:
        shared += _shared(text[at : head.start()])
        at = end
    shared += _shared(text[at:])
    for head, end in heads:
        name, body = head[1], text[head.end() : end]
        if name in found:
            raise PtxModuleError(f"the kernel {name} is defined twice")
        used = set(_NAME.findall(body)) if shared else set()
        own = [(align, size) for variable, align, size in _shared(body)]
        own += [(align, size) for variable, align, size in shared if variable in used]
        threads = _THREADS.search(head[3])
        found[name] = CubinKernel(
            name=name,
            params=tuple(_params(name, head[2] or "")),
            static_smem=_packed(own),
            threads=None if threads is None else tuple(int(n or 1) for n in threads.groups()),  # type: ignore[arg-type]
            cta_groups=frozenset(_TCGEN05.findall(body)),
        )
    if not found:
        raise PtxModuleError("the PTX has no .entry")
    return found


def required_cluster(text: str, kernel: str) -> tuple[int, int, int] | None:
    """Return the size of the clusters that a kernel of a module requires; None if it requires none."""
    head = re.search(rf"\.entry\s+{re.escape(kernel)}\s*(?:\([^()]*\))?([^{{}};]*)\{{", text)
    found = None if head is None else _CLUSTER.search(head[1])
    return None if found is None else tuple(int(size or 1) for size in found.groups())  # type: ignore[return-value]


def _end(text: str, at: int, name: str) -> int:
    depth = 1
    for brace in _BRACE.finditer(text, at):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    raise PtxModuleError(f"the body of {name} is not closed")


def _params(name: str, text: str) -> Iterator[tuple[int, int]]:
    offset = 0
    for one in text.split(",") if text.strip() else ():
        match = _PARAM.fullmatch(one.strip())
        if match is None:
            raise PtxModuleError(f"{name}: the parameter {' '.join(one.split())[:100]!r} is not readable")
        element = int(match[2]) // 8
        size, align = element * int(match[4] or 1), int(match[1] or element) or 1
        offset = -(-offset // align) * align
        yield offset, size
        offset += size


def _shared(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name, alignment and bytes of each variable in static shared memory."""
    for match in _SHARED.finditer(text):
        element = int(match[4]) // 8 * int(match[3] or 1)
        extents = [int(extent or 0) for extent in re.findall(r"\[(\d*)\]", match[6])]
        if not match[1]:
            yield match[5], int(match[2] or element) or 1, element * math.prod(extents)


def _packed(variables: list[tuple[int, int]]) -> int:
    end = 0
    for align, size in sorted(variables, reverse=True):
        end = -(-end // align) * align + size
    return end

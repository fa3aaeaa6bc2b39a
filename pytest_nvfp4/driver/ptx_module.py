"""Kernels and variables that a PTX text declares.

The text may be another compiler's, or hostile: comments and strings are skipped, and it is read in one pass. ``scan``
accepts any text; ``parse`` refuses one whose kernels cannot be listed. Registers are unknown, because ptxas decides
them.

Source: PTX ISA, "Kernel and Function Directives", "Performance-Tuning Directives", "State Spaces".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pytest_nvfp4.driver.cubin import CubinKernel

_SKIPPED: Final = re.compile(r'//[^\n]*|/\*(?s:.*?(?:\*/|\Z))|"[^"\n]*"')
_MARK: Final = re.compile(r"\.entry\b|[{};]")
_NAMED: Final = re.compile(r"\s+([\w$.]+)\s*")
_PARAM: Final = re.compile(
    r"\.param\s+(?:\.align\s+(\d{1,9})\s+)?\.([a-z]+)(\d{1,4})\s+(?:\.ptr\b[^\[]*\s)?([\w$]+)(?:\[(\d{1,9})\])?\s*"
)
_EXTENTS: Final = r"(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?"
_REQUIRED: Final = re.compile(rf"\.reqntid\s+{_EXTENTS}")
_MOST: Final = re.compile(rf"\.(?:maxntid|reqntid)\s+{_EXTENTS}")
_CLUSTER: Final = re.compile(rf"\.reqnctapercluster\s+{_EXTENTS}")
_VARIABLE: Final = re.compile(
    r"\.(shared|global|const)\s+(?:\.align\s+(\d{1,9})\s+)?"
    r"(?:\.v([248])\s+)?\.[a-z]+(\d{1,4})\s+([\w$%]+)((?:\[\d{0,15}\])*)"
)
_EXTERN: Final = re.compile(r"\.extern\s+(?:\.(?:weak|visible|common)\s+){0,2}\Z")
_BEFORE: Final = 100
"""Characters before a variable's state space in which ``.extern`` is searched; more white space than that is none of a
compiler's."""
_EXTENT: Final = re.compile(r"\[(\d*)\]")
_TCGEN05: Final = re.compile(r"\btcgen05\.[\w.:]*\b(cta_group::[12])")


class PtxModuleError(ValueError):
    """A PTX text whose kernels cannot be listed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The text of an ``.entry``.

    Attributes:
        name: Its symbol; empty if it has none.
        params: What stands between its parentheses.
        directives: What stands between these and its body.
        body: What stands in its braces.
        complete: Whether it has a name and an end.
    """

    name: str
    params: str
    directives: str
    body: str
    complete: bool = True

    @property
    def max_threads(self) -> int | None:
        """The largest CTA that ``.maxntid`` or ``.reqntid`` allows, in threads."""
        sizes = _extents(_MOST, self.directives)
        return None if sizes is None else math.prod(sizes)


@dataclass(frozen=True, slots=True)
class Scanned:
    """A PTX text: its entries, and the declarations outside of all bodies, without initial values in braces."""

    entries: tuple[Entry, ...]
    outside: str


@dataclass(frozen=True, slots=True)
class PtxModule:
    """What a PTX text declares.

    Attributes:
        kernels: Its kernels by symbol.
        clusters: The size of the clusters that a kernel requires, by symbol, for those that require one.
        variables: Bytes of the module's own variables in global and constant memory, by name.
        cta_groups: Modifiers of all its tcgen05 instructions, those of functions included.
    """

    kernels: dict[str, CubinKernel]
    clusters: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    variables: dict[str, int] = field(default_factory=dict)
    cta_groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Variable:
    space: str
    name: str
    align: int
    size: int


def scan(text: str) -> Scanned:
    """Split a text; one that is no PTX has no entries."""
    text = _SKIPPED.sub(" ", text.replace("\0", " "))
    entries: list[Entry] = []
    outside: list[str] = []
    head: int | None = None  # behind the `.entry` of the body that follows
    depth = body = at = 0
    for mark in _MARK.finditer(text):
        if mark[0] == "{":
            if not depth:
                outside.append(text[at : mark.start()])
                body = mark.end()
            depth += 1
        elif mark[0] == "}":
            depth -= 1
            if depth < 0:
                depth = 0
            elif not depth:
                at = mark.end()
                if head is not None:
                    entries.append(_entry(text[head : body - 1], text[body : mark.start()]))
                    head = None
        elif not depth:
            if head is not None:  # another begins, or a declaration ends, before its body
                entries.append(_entry(text[head : mark.start()], "", complete=False))
            head = mark.end() if mark[0] == ".entry" else None
    if not depth:
        outside.append(text[at:])
    if head is not None:
        inside = (text[head : body - 1], text[body:]) if depth else (text[head:], "")
        entries.append(_entry(*inside, complete=False))
    return Scanned(tuple(entries), " ".join(outside))


def _entry(head: str, body: str, *, complete: bool = True) -> Entry:
    named = _NAMED.match(head)
    if named is None:
        return Entry("", "", head, body, complete=False)
    rest, params = head[named.end() :], ""
    if rest.startswith("("):
        params, closed, rest = rest[1:].partition(")")
        complete = complete and bool(closed)
    return Entry(named[1], params, rest, body, complete)


def parse(text: str) -> PtxModule:
    """Return what a PTX module declares.

    Raises:
        PtxModuleError: no kernel, one twice, or one whose parameters are not those of PTX.
    """
    scanned = scan(text)
    outside = list(_variables(scanned.outside))
    shared = [variable for variable in outside if variable.space == "shared"]
    found: dict[str, CubinKernel] = {}
    clusters: dict[str, tuple[int, int, int]] = {}
    for entry in scanned.entries:
        if not entry.complete:
            raise PtxModuleError(
                f"the body of {entry.name} is not closed"
                if entry.name and entry.body
                else "an .entry has no readable name, parameters and body"
            )
        if entry.name in found:
            raise PtxModuleError(f"the kernel {entry.name} is defined twice")
        own = [variable for variable in _variables(entry.body) if variable.space == "shared"]
        found[entry.name] = CubinKernel(
            name=entry.name,
            params=tuple(_params(entry.name, entry.params)),
            static_smem=_packed([*own, *(variable for variable in shared if _names(entry.body, variable.name))]),
            threads=_extents(_REQUIRED, entry.directives),
            cta_groups=_cta_groups(entry.body),
            most_threads=entry.max_threads,
        )
        if (cluster := _extents(_CLUSTER, entry.directives)) is not None:
            clusters[entry.name] = cluster
    if not found:
        raise PtxModuleError("the PTX has no .entry")
    variables = {each.name: each.size for each in outside if each.space != "shared"}
    return PtxModule(found, clusters, variables, _cta_groups(text))


def _names(text: str, name: str) -> bool:
    """Return whether a text has a name, and not only as part of another one."""
    return name in text and re.search(rf"(?<![\w$%]){re.escape(name)}(?![\w$%])", text) is not None


def _cta_groups(text: str) -> frozenset[str]:
    return frozenset(_TCGEN05.findall(text)) if "tcgen05." in text else frozenset()


def shared_bytes(scanned: Scanned) -> int:
    """Return the bytes of all variables in static shared memory that a text declares."""
    texts = (scanned.outside, *(entry.body for entry in scanned.entries))
    return sum(each.size for text in texts for each in _variables(text) if each.space == "shared")


def parameters_and_body(text: str, kernel: str) -> tuple[dict[str, bool], str]:
    """Return whether each parameter of a kernel is an array, by name and in order, and its body without comments.

    Raises:
        PtxModuleError: no such kernel, or one whose parameters are not those of PTX.
    """
    entry = _found(text, kernel)
    return {match[4]: match[5] is not None for match in _parameters(kernel, entry.params)}, entry.body


def parameter_types(text: str, kernel: str) -> list[str]:
    """Return the type of each parameter of a kernel, such as ``u32``; that of its elements for an array.

    Raises:
        PtxModuleError: no such kernel, or one whose parameters are not those of PTX.
    """
    return [match[2] + match[3] for match in _parameters(kernel, _found(text, kernel).params)]


def _found(text: str, kernel: str) -> Entry:
    entry = next((each for each in scan(text).entries if each.name == kernel and each.complete), None)
    if entry is None:
        raise PtxModuleError(f"the PTX has no kernel {kernel}")
    return entry


def _extents(directive: re.Pattern[str], text: str) -> tuple[int, int, int] | None:
    found = directive.search(text)
    return None if found is None else (int(found[1]), int(found[2] or 1), int(found[3] or 1))


def _params(name: str, text: str) -> Iterator[tuple[int, int]]:
    offset = 0
    for match in _parameters(name, text):
        element = int(match[3]) // 8
        size, align = element * int(match[5] or 1), int(match[1] or element) or 1
        offset = -(-offset // align) * align
        yield offset, size
        offset += size


def _parameters(name: str, text: str) -> Iterator[re.Match[str]]:
    for one in text.split(",") if text.strip() else ():
        match = _PARAM.fullmatch(one.strip())
        if match is None:
            raise PtxModuleError(f"{name}: the parameter {' '.join(one.split())[:100]!r} is not readable")
        yield match


def _variables(text: str) -> Iterator[_Variable]:
    """Yield the variables in shared, global and constant memory that have a size here."""
    for match in _VARIABLE.finditer(text):
        element = int(match[4]) // 8 * int(match[3] or 1)
        extents = [int(extent or 0) for extent in _EXTENT.findall(match[6])]
        if not _EXTERN.search(text[max(0, match.start() - _BEFORE) : match.start()]):
            yield _Variable(match[1], match[5], int(match[2] or element) or 1, element * math.prod(extents))


def _packed(variables: list[_Variable]) -> int:
    end = 0
    for align, size in sorted(((each.align, each.size) for each in variables), reverse=True):
        end = -(-end // align) * align + size
    return end

"""Record the type of every layout-bearing value while a kernel compiles.

The interpreter's trace hook sees each line of the kernel's own functions; every local, attribute and tuple member
that belongs to the DSL is read as ``str(value.type)``. Nothing else is touched: reading ``.shape`` or ``.stride``
would emit IR, ``.type`` does not, and the emitted IR is the same with and without the capture. Only strings are
kept, since an object of the DSL must not be used after its compile has returned.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_nvfp4.toolchain.worker.findings import described
from pytest_nvfp4.toolchain.worker.names import Scope, SourceNames

_MAX_DEPTH = 3
_MAX_MEMBERS = 64
_BEARING = ("!cute.", "!cute_nvgpu.")
_PLAIN = frozenset({int, str, bool, float, type(None)})
_MUTE = ("cutlass.cute.runtime", "cutlass.base_dsl.runtime")

_Trace = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """A named value as it was seen: ``name`` with its scope, the type's text, and the line that bound it."""

    name: str
    type: str
    file: str
    line: int


class Capture:
    """Collects values of the functions that are defined in the watched files.

    Args:
        watched: Says whether a file's functions are the user's.
    """

    def __init__(self, watched: Callable[[str], bool]) -> None:
        self._watched = watched
        self._files: dict[str, SourceNames | None] = {}
        self._own: dict[type, bool] = {}
        self._types: dict[str, dict[str, int]] = {}
        self._order: list[Captured] = []
        self.errors: dict[tuple[str, int], str] = {}
        """What went wrong inside the capture itself, by file and line; the compile is never disturbed by it."""

    def values(self) -> list[Captured]:
        """Everything seen, in the order of first sight. A second distinct type of one name is called ``name#2``."""
        return list(self._order)

    def start(self) -> None:
        """Install the hook in this thread and in those to come."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def stop(self) -> None:
        """Remove the hook."""
        sys.settrace(None)
        threading.settrace(None)

    def _names(self, file: str) -> SourceNames | None:
        if file not in self._files:
            known = None
            if self._watched(file):
                try:
                    known = SourceNames(Path(file).read_text(encoding="utf-8", errors="replace"))
                except OSError:
                    known = None
            self._files[file] = known
        return self._files[file]

    def _enter(self, frame: FrameType, _event: str, _arg: Any) -> _Trace | None:
        names = self._names(frame.f_code.co_filename)
        if names is None:
            return None
        seen: dict[str, tuple[object, ...]] = {}
        previous = frame.f_lineno

        def step(frame: FrameType, event: str, _arg: Any) -> _Trace:
            nonlocal previous
            if event in ("line", "return"):
                scope = names.at(previous)
                if scope is not None:
                    try:
                        self._look(frame, scope, seen, previous)
                    except Exception as error:  # reported, not raised: the hook runs inside the kernel's functions
                        place = (frame.f_code.co_filename, previous)
                        self.errors.setdefault(place, f"a value of {scope.name} could not be read: {described(error)}")
                previous = frame.f_lineno
            return step

        return step

    def _look(self, frame: FrameType, scope: Scope, seen: dict[str, tuple[object, ...]], line: int) -> None:
        file = frame.f_code.co_filename
        for name, value in frame.f_locals.items():
            if name not in scope.names or name == "_":  # by custom, `_` is what nobody wants
                continue
            if type(value) in _PLAIN:
                continue
            # Compared by identity: `==` between values of the DSL would emit a comparison into the kernel. They are
            # kept as objects, since the id of one that is gone may be given to another.
            parts = (value, *self._parts(value))
            last = seen.get(name)
            if last is not None and len(last) == len(parts) and all(map(operator.is_, last, parts)):
                continue
            seen[name] = parts
            for label, text in self._members(value, scope, name, depth=0):
                self._record(label, text, file, line)

    def _parts(self, value: object) -> Iterable[object]:
        """What a container or an object of the user's holds: bound anew, it is looked at again."""
        if isinstance(value, tuple | list):
            return value[:_MAX_MEMBERS]
        if isinstance(value, dict):
            return islice(value.values(), _MAX_MEMBERS)
        if self._is_own(value):
            return list(getattr(value, "__dict__", {}).values())
        return ()

    def _members(self, value: object, scope: Scope, name: str, *, depth: int) -> Iterator[tuple[str, str]]:
        if self._is_own(value):
            prefix = type(value).__qualname__.replace("<locals>.", "")
            yield from self._attributes(value, scope, prefix, depth=depth)
            return
        yield from self._typed(value, f"{scope.name}.{name}", scope, depth=depth)

    def _attributes(self, value: object, scope: Scope, prefix: str, *, depth: int) -> Iterator[tuple[str, str]]:
        if depth >= _MAX_DEPTH:
            return
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        for key, member in list(attributes.items())[: 8 * _MAX_MEMBERS]:
            if isinstance(key, str):
                yield from self._typed(member, f"{prefix}.{key}", scope, depth=depth + 1)

    def _typed(self, value: object, label: str, scope: Scope, *, depth: int) -> Iterator[tuple[str, str]]:
        if isinstance(value, tuple | list):
            if depth < _MAX_DEPTH:
                for index, member in enumerate(value[:_MAX_MEMBERS]):
                    yield from self._typed(member, f"{label}[{index}]", scope, depth=depth + 1)
        elif isinstance(value, dict):
            if depth < _MAX_DEPTH:
                for key, member in list(value.items())[:_MAX_MEMBERS]:
                    if isinstance(key, int) or (isinstance(key, str) and key.isidentifier()):
                        yield from self._typed(member, f"{label}[{key}]", scope, depth=depth + 1)
        elif self._is_own(value):
            yield from self._attributes(value, scope, label, depth=depth)
        elif (text := _type_text(value)) is not None:
            yield label, text

    def _is_own(self, value: object) -> bool:
        """Whether the value is an instance of a class that a watched file defines."""
        kind = type(value)
        own = self._own.get(kind)
        if own is None:
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            own = self._own[kind] = isinstance(file, str) and self._names(file) is not None
        return own

    def _record(self, label: str, text: str, file: str, line: int) -> None:
        known = self._types.setdefault(label, {})
        if text in known:
            return
        known[text] = len(known) + 1
        name = label if len(known) == 1 else f"{label}#{len(known)}"
        self._order.append(Captured(name, text, file, line))


def _type_text(value: object) -> str | None:
    """``str(value.type)`` of a DSL object whose type bears a layout, a swizzle, an address or an atom."""
    module = type(value).__module__
    if not module.startswith("cutlass.") or module.startswith(_MUTE) or isinstance(value, type):
        return None
    try:
        kind = value.type  # type: ignore[attr-defined]
    except Exception:  # a value outside a compile has no IR type; reading it must never disturb the kernel
        return None
    if kind is None or callable(kind):
        return None
    text = " ".join(str(kind).split())
    return text if text.startswith(_BEARING) else None

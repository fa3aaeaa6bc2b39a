"""Record the type of every layout-bearing value while a kernel compiles.

The interpreter's trace hook sees each line of the kernel's own functions; every local, attribute and tuple member
that belongs to the DSL is read as ``str(value.type)``. Nothing else is read: ``.shape`` and ``.stride`` emit IR, but
``.type`` does not, so the emitted IR is the same with and without the capture. Only strings are stored, because an
object of the DSL must not be used after its compile has returned.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType, MemberDescriptorType
from typing import Any

from pytest_nvfp4.toolchain.worker.findings import described
from pytest_nvfp4.toolchain.worker.liveness import Liveness
from pytest_nvfp4.toolchain.worker.names import Scope, SourceNames

_MAX_DEPTH = 3
_MAX_MEMBERS = 64
_LAYOUT_TYPES = ("!cute.", "!cute_nvgpu.")
_PLAIN = frozenset({int, str, bool, float, type(None)})
_IGNORED_MODULES = ("cutlass.cute.runtime", "cutlass.base_dsl.runtime")

_Trace = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """Captured value: ``name`` with its scope, the type's text, and the line that bound it."""

    name: str
    type: str
    file: str
    line: int


class Capture:
    """Recorder of the values in functions of watched files.

    Args:
        watched: Returns whether a file belongs to the user.
    """

    def __init__(self, watched: Callable[[str], bool]) -> None:
        self._watched = watched
        self._files: dict[str, SourceNames | None] = {}
        self._own: dict[type, bool] = {}
        self._liveness = Liveness()
        self._types: dict[str, dict[str, int]] = {}
        self._order: list[Captured] = []
        self.count = 0
        """Number of values that were recorded."""
        self.errors: dict[tuple[str, int], str] = {}
        """Errors of the capture itself, by file and line; they never affect the compile."""
        self._hook = _trace_of(self._files, self._enter)

    def values(self) -> list[Captured]:
        """Return all values in order of first appearance; a second distinct type of a name is ``name#2``."""
        return list(self._order)

    def entered(self, file: Path) -> bool:
        """Return whether any code of a watched file ran, whatever its import path."""
        return str(file) in self._files or any(Path(seen).resolve() == file.resolve() for seen in self._files)

    def start(self) -> None:
        """Install the hook in this thread and in future threads."""
        threading.settrace(self._hook)
        sys.settrace(self._hook)

    @property
    def running(self) -> bool:
        """Whether the hook is still in this thread."""
        return sys.gettrace() is self._hook

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

    def _enter(self, frame: FrameType) -> _Trace | None:
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
        context = self._liveness.context()
        for name, value in frame.f_locals.items():
            if name not in scope.names or name == "_":  # by convention, `_` is an unused value
                continue
            if type(value) in _PLAIN:
                continue
            # Compared by identity: `==` between values of the DSL would emit a comparison into the kernel. The objects
            # are stored, not their ids, because the id of a deleted object may be reused.
            parts = (value, context, *self._parts(value))
            last = seen.get(name)
            if last is not None and len(last) == len(parts) and all(map(operator.is_, last, parts)):
                continue
            seen[name] = parts
            outdated: dict[int, object] = {}
            if own := self._is_own(value):
                prefix = self._class_name(type(value), scope)
                held = partial(self._attributes, value, prefix, depth=0)
                outdated = self._liveness.outdated(value, held, context)
            if context is None:
                continue
            for label, member in held() if own else self._typed(value, f"{scope.name}.{name}", depth=0):
                if id(member) not in outdated and (text := _type_text(member)) is not None:
                    self._record(label, text, file, scope.line_of(name, line))

    def _class_name(self, kind: type, scope: Scope) -> str:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        names = self._names(file) if isinstance(file, str) else None
        return names.of_class(kind.__qualname__, seen_in=scope) if names else kind.__qualname__

    def _parts(self, value: object) -> Iterable[object]:
        """Return the members of a container or user object; a rebound member is captured again."""
        if isinstance(value, tuple | list):
            return value[:_MAX_MEMBERS]
        if isinstance(value, dict):
            return islice(value.values(), _MAX_MEMBERS)
        if self._is_own(value):
            return [member for _, member in _attributes_of(value)]
        return ()

    def _attributes(self, value: object, prefix: str, *, depth: int) -> Iterator[tuple[str, object]]:
        if depth < _MAX_DEPTH:
            for key, member in _struct_of(value) or _attributes_of(value):
                yield from self._typed(member, f"{prefix}.{key}" if key else prefix, depth=depth + 1)

    def _typed(self, value: object, label: str, *, depth: int) -> Iterator[tuple[str, object]]:
        """Iterate over the objects of the DSL in a value with their names, without reading them."""
        if isinstance(value, tuple | list):
            if depth < _MAX_DEPTH:
                fields = getattr(value, "_fields", ())  # members of a named tuple have names
                for index, member in enumerate(value[:_MAX_MEMBERS]):
                    name = f"{label}.{fields[index]}" if index < len(fields) else f"{label}[{index}]"
                    yield from self._typed(member, name, depth=depth + 1)
        elif isinstance(value, dict):
            if depth < _MAX_DEPTH:
                for key, member in list(value.items())[:_MAX_MEMBERS]:
                    if isinstance(key, int) or (isinstance(key, str) and key.isidentifier()):
                        yield from self._typed(member, f"{label}[{key}]", depth=depth + 1)
        elif self._is_own(value):
            yield from self._attributes(value, label, depth=depth)
        elif _of_the_dsl(value):
            yield label, value

    def _is_own(self, value: object) -> bool:
        """Return whether the value is an instance of a class in a watched file."""
        kind = type(value)
        own = self._own.get(kind)
        if own is None and issubclass(kind, tuple | list | dict):
            own = self._own[kind] = False
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
        self.count += 1


def _trace_of(files: dict[str, SourceNames | None], enter: Callable[[FrameType], _Trace | None]) -> _Trace:
    """Return a trace function that calls ``enter`` for new frames, except in files that are known not to be watched.

    A compile enters millions of frames of the DSL.
    """

    def trace(frame: FrameType, _event: str, _arg: Any) -> _Trace | None:
        # `files` itself stands for a file that is not known yet
        return None if files.get(frame.f_code.co_filename, files) is None else enter(frame)

    return trace


def _attributes_of(value: object) -> list[tuple[str, object]]:
    """Return the attributes of an object, ``__slots__`` included, without calling code of its class."""
    found = [(key, member) for key, member in getattr(value, "__dict__", {}).items() if isinstance(key, str)]
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for key in (slots,) if isinstance(slots, str) else slots:
            member = kind.__dict__.get(key)
            if isinstance(member, MemberDescriptorType):
                try:
                    found.append((key, member.__get__(value)))
                except AttributeError:  # not bound yet
                    continue
    return found[: 8 * _MAX_MEMBERS]


def _struct_of(value: object) -> list[tuple[str, object]]:
    """Return the base of a ``@cute.struct`` and its aligned members as pointers; empty for anything else.

    DSL 4.4 stores the base as ``_base`` and scalars as pointers, 4.8 as ``base`` and wrapped; a ``MemRange`` holds the
    pointer to its first byte. The alignment of a member without ``Align`` is accidental (it changes with the preceding
    members), so such members are omitted.
    """
    fields, held = getattr(type(value), "__annotations__", {}), getattr(value, "__dict__", {})
    base = held.get("_base", held.get("base"))
    if base is None or not fields or "base" in fields or not _of_the_dsl(base):
        return []
    if not all(name in held for name in fields):
        return []
    members = [("", base)]
    for name, declared in fields.items():
        member = held[name]
        if not _of_the_dsl(member):  # a struct within
            members.append((name, member))
        elif type(declared).__name__ == "_AlignMeta":
            members.append((name, getattr(member, "_ptr", getattr(member, "_base", member))))
    return members


def _of_the_dsl(value: object) -> bool:
    module = type(value).__module__
    return module.startswith("cutlass.") and not module.startswith(_IGNORED_MODULES) and not isinstance(value, type)


def _type_text(value: object) -> str | None:
    """Return ``str(value.type)`` of a DSL object whose type has a layout, a swizzle, an address or an atom."""
    try:
        kind = value.type  # type: ignore[attr-defined]
    except Exception:  # not an IR value; reading it must never affect the kernel
        return None
    if kind is None or callable(kind):
        return None
    text = " ".join(str(kind).split())
    return text if text.startswith(_LAYOUT_TYPES) else None

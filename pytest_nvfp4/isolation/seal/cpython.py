"""Offsets of CPython's structures, and readers of dictionaries and bytecode in another process's memory.

Sources: ``Include/cpython/funcobject.h``, ``code.h``, ``object.h``, ``dictobject.h`` and
``Include/internal/pycore_dict.h``, which agree in these fields in Python 3.11, 3.12 and 3.13. Nothing here is taken on
trust: the keeper compares what it reads before the kernel runs with what the worker lists, and reports a difference as
an unknown layout.
"""

from __future__ import annotations

import dis
import opcode
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Final

Read = Callable[[int, int], bytes]
"""Returns bytes of a process's memory by address and size."""

HEAD: Final = 8
"""Offset of ``ob_type``; the reference count before it changes all the time."""
FUNCTION: Final = (HEAD, 80)
"""``ob_type`` to ``func_closure``: type, globals, builtins, names, code, defaults, keyword defaults, closure."""
CODE: Final = (HEAD, 52)
"""``ob_type`` to ``co_flags``: type, size, constants, names, exception table, flags."""
CODE_UNITS: Final = CodeType.__basicsize__
"""Offset of ``co_code_adaptive``, the bytecode that runs."""
TUPLE_ITEMS: Final = 24
TYPE_RANGES: Final = ((HEAD, 16), (32, 168), (184, 352), (392, 408))
"""``PyTypeObject`` without name, flags, documentation, caches, subclasses, weak references and version tag."""
TYPE_SUITES: Final = {80: 32, 96: 288, 104: 80, 112: 24, 160: 16}
"""Offsets of ``tp_as_async``, ``_number``, ``_sequence``, ``_mapping`` and ``_buffer``, with the sizes of these."""
METHOD_DEF: Final = 24
"""Bytes of a ``PyMethodDef`` up to its flags; ``m_ml`` of a built-in function, its first field, points to one."""
MANAGED_DICT: Final = -24
"""Offset of the pointer to the dictionary of an instance whose class has ``Py_TPFLAGS_MANAGED_DICT``."""
MANAGED_DICT_FLAG: Final = 1 << 4
MODULE_DICT: Final = (HEAD, 24)
STRING_HEAD: Final = str.__sizeof__("") - 1
"""Offset of the characters of an ASCII string; hash, state and cached encodings lie before them."""
LONGEST_NAME: Final = 200
LARGEST_DICT: Final = 1 << 20
"""Entries of a dictionary beyond which it is not read."""

_SPLIT = 2
"""``DICT_KEYS_SPLIT``; 1 stands for keys that are all strings, 0 for others."""
_HIDDEN = 255
_DICT = struct.Struct("<qQQQ")
_KEYS = struct.Struct("<BBBxIqq")
_VALUES_OFFSET = 8 if sys.version_info >= (3, 13) else 0


class LayoutError(ValueError):
    """A structure does not have the layout that this module knows."""


@dataclass(frozen=True, slots=True)
class DictBytes:
    """What decides which names a dictionary binds to what.

    Attributes:
        width: Words of an entry.
        entries: The entries.
        values: The values, if they are kept apart from the entries.
    """

    width: int
    entries: bytes
    values: bytes | None

    def addresses(self) -> dict[int, int]:
        """Return the address of the value for each address of a key."""
        words = struct.unpack(f"<{len(self.entries) // 8}Q", self.entries)
        keys, values = words[self.width - 2 :: self.width], words[self.width - 1 :: self.width]
        if self.values is not None:
            values = struct.unpack(f"<{len(self.values) // 8}Q", self.values)
        return {key: value for key, value in zip(keys, values, strict=True) if key and value}


def dict_bytes(read: Read, address: int) -> DictBytes:
    """Return the entries of a dictionary as they lie in memory. Raises LayoutError or OSError."""
    used, _, keys, values = _DICT.unpack(read(address + 16, _DICT.size))
    _, index_bytes, kind, _, _, entries = _KEYS.unpack(read(keys + 8, _KEYS.size))
    if not 0 <= entries <= LARGEST_DICT or index_bytes > 24 or kind > _SPLIT or not 0 <= used <= LARGEST_DICT:
        raise LayoutError(f"a dictionary with {entries} entries of kind {kind}")
    width = 2 if kind else 3
    held = read(keys + 32 + (1 << index_bytes), 8 * width * entries)
    return DictBytes(width, held, read(values + _VALUES_OFFSET, 8 * entries) if values else None)


def ascii_text(read: Read, address: int) -> str:
    """Return a string of ASCII characters, as names are, or of the first characters of a longer one.

    Raises:
        LayoutError: It has other characters.
        OSError: It cannot be read.
    """
    length = int.from_bytes(read(address + 16, 8), "little")
    try:
        return read(address + STRING_HEAD, min(length, LONGEST_NAME)).decode("ascii")
    except UnicodeDecodeError as error:
        raise LayoutError(str(error)) from error


def _base_opcodes() -> tuple[bytes, bytes]:
    """Return the base of each opcode as a table for ``bytes.translate``, and the number of its caches.

    Specialised opcodes differ from their base only while they run; ``co_code`` shows the base. The interpreter itself
    answers for every opcode below the instrumented ones, whose base has the same name. 255 stands for an opcode that
    hides its base (``INSTRUMENTED_LINE``, ``INSTRUMENTED_INSTRUCTION``, ``ENTER_EXECUTOR``).
    """
    names: dict[str, int] = dict(getattr(dis, "_all_opmap", None) or opcode.opmap)
    names |= {name: number for name, number in opcode.opmap.items() if name not in names}
    instrumented = {name: number for name, number in names.items() if name.startswith("INSTRUMENTED_")}
    first = min(instrumented.values(), default=255)
    table = bytearray(range(256))
    some = (lambda: None).__code__
    caches = bytearray(256)
    hidden = {names.get("ENTER_EXECUTOR", 255)}
    for number in range(first):
        if number in hidden:
            table[number] = _HIDDEN
            continue
        table[number] = some.replace(co_code=bytes((number, 0)) + b"\0\0" * 12).co_code[0]
    for name, number in instrumented.items():
        table[number] = names.get(name.removeprefix("INSTRUMENTED_"), _HIDDEN)
    for number in range(first, 256):
        if table[number] == number:
            table[number] = _HIDDEN
    entries = getattr(opcode, "_inline_cache_entries", ())
    for number in range(256):
        name = opcode.opname[number]
        caches[number] = entries.get(name, 0) if isinstance(entries, dict) else (entries[number] if entries else 0)
    return bytes(table), bytes(caches)


class Bytecode:
    """Normaliser of bytecode: specialised and instrumented units become what ``co_code`` shows, caches zeros."""

    def __init__(self) -> None:
        self._base, self._caches = _base_opcodes()

    def same(self, raw: bytes, before: bytes) -> bool:
        """Return whether the units of a running code do the same as before, whatever they were specialised to."""
        if raw == before:
            return True
        if len(raw) != len(before):
            return False
        now, earlier = raw[::2].translate(self._base), before[::2].translate(self._base)
        arguments, wanted = raw[1::2], before[1::2]
        index, size = 0, len(earlier)
        while index < size:
            number = earlier[index]
            if now[index] not in (number, _HIDDEN) or arguments[index] != wanted[index]:
                return False
            index += 1 + self._caches[number]
        return True

"""Lists of memory to compare later: ranges of bytes, bytecode, and what names of dictionaries are bound to.

The layout of CPython's objects (``cpython``) says which bytes of an object decide what it does; hashes, caches and
reference counts change while a program runs and are left out.
"""

from __future__ import annotations

import ctypes
from array import array
from types import MethodDescriptorType, MethodWrapperType
from typing import Any, Final

from pytest_nvfp4.isolation.seal import cpython

_STRING_HEAD: Final = {True: cpython.STRING_HEAD, False: str.__sizeof__("\xe9") - 2}
"""Offset of the characters of ASCII and other strings; hash, state and cached encodings lie before them."""
ForeignFunction: Final[type[Any]] = ctypes.CFUNCTYPE(None).__mro__[1]
"""``ctypes._CFuncPtr``, the class of all functions of shared libraries."""


class MemoryLists:
    """The memory to compare, as flat lists that another process can read.

    Attributes:
        ranges: Address, size and label of each range of bytes.
        codes: Address, size and label of each bytecode.
        names: Address of a dictionary, of a key and of its value, and the label, of each binding.
        closed: Dictionaries in which some names must not appear, because they would hide others: address, label, and
            index of the names in ``hiding``.
        hiding: Sets of such names.
        labels: What a person calls each of them.
    """

    def __init__(self) -> None:
        self.ranges = array("Q")
        self.codes = array("Q")
        self.names = array("Q")
        self.closed: list[tuple[int, str, int]] = []
        self.hiding: list[list[str]] = []
        self.labels: list[str] = []
        self._sets: dict[frozenset[str], int] = {}
        self._bound: set[tuple[int, int]] = set()
        self._keys: dict[int, dict[Any, int]] = {}

    def close_names(self, space: dict[str, Any], label: str, names: frozenset[str]) -> None:
        """List names that are not in a dictionary and must not appear, because another one provides them."""
        if names not in self._sets:
            self._sets[names] = len(self.hiding)
            self.hiding.append(sorted(names))
        self.closed.append((id(space), label, self._sets[names]))

    def list_built_in(self, value: object, label: str) -> None:
        """List a function that C defines: its definition, the object that it is bound to, and its entry point."""
        self.list_range(value, (cpython.HEAD, 24), label)
        self.list_range(value, (48, 56), label)  # the entry point that calls use
        definition = int.from_bytes(ctypes.string_at(id(value) + 16, 8), "little")
        self.ranges.extend((definition, cpython.METHOD_DEF, self.label_index(label)))

    def list_descriptor(self, value: object, label: str) -> None:
        """List a descriptor without its qualified name, which it computes when it is asked for it."""
        self.list_range(value, (cpython.HEAD, 32), label)
        if not isinstance(value, MethodWrapperType):
            self.list_range(value, (40, type(value).__basicsize__), label)
        if isinstance(value, MethodDescriptorType):
            definition = int.from_bytes(ctypes.string_at(id(value) + 40, 8), "little")
            self.ranges.extend((definition, cpython.METHOD_DEF, self.label_index(label)))

    def list_foreign(self, value: object, label: str) -> None:
        """List a handle, or a function of a shared library: ``b_ptr`` points to the handle or the address to call.

        The last two fields of such a function are what is called with its result (``errcheck``) and its parameters.
        """
        self.list_range(value, (cpython.HEAD, 24), label)
        pointer = int.from_bytes(ctypes.string_at(id(value) + 16, 8), "little")
        size = ctypes.sizeof(value) if isinstance(value, ctypes._SimpleCData) else 8
        self.ranges.extend((pointer, size, self.label_index(label)))
        if isinstance(value, ForeignFunction):
            end = ForeignFunction.__basicsize__
            self.list_range(value, (end - 16, end), label)

    def list_data(self, value: object, label: str) -> None:
        """List the content of a text, of bytes or of a number; nothing of other objects."""
        if type(value) is str:
            head = _STRING_HEAD[value.isascii()]
            self.list_range(value, (head, head + len(value)), label)  # of wide characters, the first part
        elif type(value) is bytes:
            self.list_range(value, (32, 33 + len(value)), label)
        elif type(value) in (int, float, complex):
            self.list_range(value, (16, value.__sizeof__()), label)

    def list_pointers(self, holder: object, held: object, label: str) -> None:
        """List the words of an object that point to another one."""
        size = max(type(holder).__basicsize__, 16)
        words = array("Q", ctypes.string_at(id(holder), size - size % 8))
        for index, word in enumerate(words):
            if word == id(held) and index:
                self.ranges.extend((id(holder) + 8 * index, 8, self.label_index(label)))

    def list_range(self, value: object, where: tuple[int, int], label: str) -> None:
        """List the bytes of an object from one offset to another."""
        self.ranges.extend((id(value) + where[0], where[1] - where[0], self.label_index(label)))

    def bind(self, space: dict[Any, Any], key: Any, label: str) -> None:
        """List what a key of a dictionary is bound to."""
        value = space[key]
        if (id(space), id(key)) in self._bound:
            return
        self._bound.add((id(space), id(key)))
        if id(space) not in self._keys:
            self._keys[id(space)] = {own: id(own) for own in space}
        self.names.extend((id(space), self._keys[id(space)][key], id(value), self.label_index(label)))

    def label_index(self, label: str) -> int:
        """Return the index of a label in ``labels``."""
        if not self.labels or self.labels[-1] != label:
            self.labels.append(label)
        return len(self.labels) - 1

"""Arrays of a numpy archive from outside, whose sizes, types and values are bounded before they are used."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.isolation.door import DoorError

MOST_BYTES = 256 << 20
"""Largest archive that is read."""
_MOST_PLAIN = 2 << 30
_MOST_MEMBERS = 100_000


def sums(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return numbers that are stored as differences."""
    return values.astype(np.int64).cumsum()


class StoredArrays:
    """The arrays of an archive whose announced sizes are bounded."""

    def __init__(self, data: bytes, source: str) -> None:
        self.source = source
        self._prefix = ""
        if len(data) > MOST_BYTES:
            raise DoorError(source, f"has {len(data)} bytes, and at most {MOST_BYTES} are read")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise DoorError(source, f"is no archive of a recording: {error}") from None
        members = self._zip.infolist()
        if len(members) > _MOST_MEMBERS or sum(member.file_size for member in members) > _MOST_PLAIN:
            raise DoorError(source, f"announces {len(members)} arrays of more than {_MOST_PLAIN} bytes")
        self._members = {member.filename: member for member in members}

    def below(self, prefix: str) -> StoredArrays:
        """Return the arrays whose names begin with a prefix."""
        part: StoredArrays = object.__new__(StoredArrays)
        part.source, part._zip, part._members = self.source, self._zip, self._members
        part._prefix = self._prefix + prefix
        return part

    def array(self, name: str, dtype: Any, *shape: int) -> NDArray[Any]:
        """Return an array of a type and a shape, or of one dimension of any length."""
        full = f"{self._prefix}{name}"
        member = self._members.get(f"{full}.npy")
        if member is None:
            raise DoorError(self.source, f"lacks the array {full}")
        try:
            data = self._zip.read(member)
            stream = io.BytesIO(data)
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            found, fortran, kind = read(stream)
        except (zipfile.BadZipFile, zlib.error, ValueError, OSError, RuntimeError, EOFError, SyntaxError) as error:
            raise DoorError(self.source, f"has a damaged array {full}: {error}") from None
        plain = data[stream.tell() :]
        fits = kind == np.dtype(dtype) and len(plain) == math.prod(found) * kind.itemsize and not kind.hasobject
        if not fits or (found != shape if shape else len(found) != 1) or (fortran and len(found) > 1):
            raise DoorError(self.source, f"has an array {full} of another type or length than expected")
        return np.frombuffer(plain, kind).reshape(found)

    def indices(self, name: str, count: int, end: int, *, low: int = 0) -> NDArray[np.int32]:
        """Return ``count`` indices from ``low`` to before ``end``."""
        return self.within(name, self.array(name, np.int32, count), end, low=low)

    def sums(self, name: str, count: int, end: int) -> NDArray[np.int32]:
        """Return ``count`` indices below ``end`` that are stored as differences."""
        return self.within(name, sums(self.array(name, np.int32, count)), end)

    def within(self, name: str, values: NDArray[Any], end: int, *, low: int = 0) -> NDArray[np.int32]:
        """Return numbers from ``low`` to before ``end``. Raises DoorError for others."""
        if values.size and (int(values.min()) < low or int(values.max()) >= end):
            raise DoorError(self.source, f"has a number in {self._prefix}{name} that is not from {low} to {end - 1}")
        return values.astype(np.int32)

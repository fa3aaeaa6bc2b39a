"""Bytes of a result: inline, or in a file of the folder that parent and worker share."""

from __future__ import annotations

import base64
import hashlib
import zlib
from pathlib import Path
from typing import Self

from pydantic import model_validator

from pytest_nvfp4.device.job import Model
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import Name, Sha256, Size
from pytest_nvfp4.isolation.door.files import file_name_problem, read_below
from pytest_nvfp4.isolation.door.packing import from_base64, inflate


class Blob(Model):
    """Bytes, either inline (zlib, base64) or in a file.

    Attributes:
        sha256: Hash of the plain bytes.
        size: Number of plain bytes.
        inline: The bytes, compressed.
        file: Path of the file, relative to the folder that parent and worker share.
    """

    sha256: Sha256
    size: Size
    inline: str | None = None
    file: Name | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.inline is None) == (self.file is None):
            raise ValueError("a blob is either inline or in a file")
        if self.file is not None and (problem := file_name_problem(self.file)):
            raise ValueError(f"the file of a blob, {self.file[:80]!r}, {problem}")
        return self

    @classmethod
    def inlined(cls, data: bytes) -> Blob:
        """Return a blob that contains the bytes."""
        text = base64.b64encode(zlib.compress(data, 1)).decode("ascii")
        return cls(sha256=hashlib.sha256(data).hexdigest(), size=len(data), inline=text)

    def read(self, folder: Path | None, *, source: str, most: int, exact: bool = True) -> bytes:
        """Return the plain bytes.

        Args:
            folder: Folder of the files; None if they did not come with the result.
            source: What the bytes are, for the error.
            most: Number of bytes that were asked for; a blob that announces others is refused before it is read.
            exact: Whether that is the number of bytes, or the largest one.

        Raises:
            DoorError: The bytes are missing, are not those that were asked for, or do not match the hash.
        """
        if self.size > most or (exact and self.size != most):
            expected = f"{most} are expected" if exact else f"at most {most} are read"
            raise DoorError(source, f"announces {self.size} bytes, and {expected}")
        if self.inline is not None:
            data = inflate(from_base64(self.inline, source=source), size=self.size, source=source)
        elif folder is None:
            raise DoorError(source, "did not come with the answer")
        else:
            assert self.file is not None
            data = read_below(folder, self.file, source=source, size=self.size)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise DoorError(source, "does not match its hash")
        return data

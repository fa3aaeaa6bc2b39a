"""What a worker or a reviewer leaves in its outbox: JSON files that are bounded, validated, and never linked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeVar

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.loop.schemas import Model
from pytest_nvfp4.loop.work.tree import Entry, TreeError

M = TypeVar("M", bound=Model)
_BOUNDS: Final = Bounds(size=1 << 20, depth=8, values=20_000)


class Outbox:
    """A folder that an untrusted process may write; it is held open, so that it cannot be replaced by another one.

    Args:
        path: The folder; it is made.

    Raises:
        OSError: It cannot be made or opened.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def read(self, name: str, model: type[M]) -> M | None:
        """Return the model in a file; None if there is no such file.

        Raises:
            DoorError: It is no regular file of a bounded size, or no such model.
        """
        try:
            status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DoorError(name, f"cannot be read: {error.strerror}") from None
        entry = Entry(name, status, self._descriptor)
        if not entry.regular:
            raise DoorError(name, f"is {entry.what}, and not a file")
        if status.st_nlink != 1:
            raise DoorError(name, "is a hard link, and links are not followed")
        try:
            data = entry.read(_BOUNDS.size)
        except TreeError as error:
            raise DoorError(name, str(error)) from None
        return parsed(model, data, source=name, bounds=_BOUNDS)

    def close(self) -> None:
        """Close the folder."""
        os.close(self._descriptor)

"""Reports in a folder or a ZIP archive, such as those that ``popcorn submit --profile`` downloads.

Such an archive holds a ``.ncu-rep``, the details page as CSV and text, and a manifest, for one benchmark or in one
folder for each (gpu-mode/popcorn-cli, pull requests 64, 67 and 80).
"""

from __future__ import annotations

import errno
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import Final

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import file_name_problem
from pytest_nvfp4.temporary import temporary_folder

_MOST_FILES: Final = 1000
_MOST_BYTES: Final = 1 << 30
_SUFFIXES: Final = (".ncu-rep", ".sqlite", ".xml", ".csv")
"""Kinds of reports, the one with most in it first; of several in one folder the first kind is read."""
_DAMAGED: Final = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError
)  # fmt: skip
"""What zipfile and its decompressors raise for damaged bytes; names that are not UTF-8 are a ValueError."""


def _is_report(path: PurePath) -> bool:
    """Return whether a name is one of a report; ``._NAME`` holds what macOS notes of the file NAME."""
    return path.suffix in _SUFFIXES and not path.name.startswith("._")


@contextmanager
def unpacked(path: Path, *, source: str) -> Iterator[Path]:
    """Yield a folder with the reports of a ZIP archive; nothing else of it is unpacked.

    Raises:
        DoorError: It is damaged, or its reports are too many or too large, or a name leaves the folder.
    """
    with temporary_folder("archive") as name:
        folder = Path(name)
        left = _MOST_BYTES
        try:
            with zipfile.ZipFile(path) as archive:
                members = [one for one in archive.infolist() if _is_report(PurePosixPath(one.filename))]
                if len(members) > _MOST_FILES:
                    raise DoorError(source, f"has {len(members)} reports, and at most {_MOST_FILES} are read")
                for member in members:
                    if problem := file_name_problem(member.filename):
                        raise DoorError(source, f"has a file named {member.filename[:80]!r}, which {problem}")
                    left -= member.file_size
                    if left < 0:
                        raise DoorError(source, f"unpacks to more than {_MOST_BYTES} bytes")
                    target = folder.joinpath(*PurePosixPath(member.filename).parts)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    # zipfile reads no more than the announced size, and compares the checksum.
                    with archive.open(member) as packed, target.open("xb") as file:
                        shutil.copyfileobj(packed, file)
        except DoorError:
            raise
        except _DAMAGED as error:
            raise DoorError(source, f"is a damaged archive: {error}") from None
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise DoorError(source, f"has two files of one name: {error.filename!r}") from None
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):  # those of bz2, and of a place before the file's begin
                raise
            raise DoorError(source, f"is a damaged archive: {error}") from None
        yield folder


def reports_below(folder: Path, *, source: str) -> list[Path]:
    """Return the reports below a folder: of each folder those of the best kind.

    Raises:
        DoorError: There is none, or there are too many.
    """
    by_folder: dict[Path, list[Path]] = {}
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if number >= 100 * _MOST_FILES:
            raise DoorError(source, f"has more than {100 * _MOST_FILES} files below it; name the report itself")
        if _is_report(path) and path.is_file():
            by_folder.setdefault(path.parent, []).append(path)
    found: list[Path] = []
    for paths in by_folder.values():
        best = min(_SUFFIXES.index(path.suffix) for path in paths)
        found += [path for path in paths if path.suffix == _SUFFIXES[best]]
    if not found:
        raise DoorError(source, f"has no report below it: no file ends with {', '.join(_SUFFIXES)}")
    if len(found) > _MOST_FILES:
        raise DoorError(source, f"has {len(found)} reports below it, and at most {_MOST_FILES} are read")
    return found

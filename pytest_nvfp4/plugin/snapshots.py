"""Text snapshots on top of syrupy: matching and writing.

`ownership` decides which snapshots are unused, because syrupy's rules for shared folders assume another layout of the
folder. `places` decides where snapshots are stored.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollection, SnapshotCollections
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation

from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.places import safe_name
from pytest_nvfp4.plugin.state import RUN
from pytest_nvfp4.writing import write_whole

_MOST_BYTES = 64 << 20


class TextSnapshotExtension(SingleFileSnapshotExtension):
    """Syrupy extension with one text file for each snapshot, which is replaced atomically.

    Attributes:
        passes: The verdict of the current comparison, which is judged by meaning before syrupy compares the texts;
            None to compare the texts.
    """

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
    write_immediately = True
    passes: bool | None = None

    def serialize(self, data: Any, **_options: Any) -> str:
        """Return the text."""
        return str(data)

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        """Return whether the received text matches the stored one."""
        return bool(serialized_data == snapshot_data) if self.passes is None else self.passes

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        """Return the folder of the test module's snapshots."""
        places = test_location.item.config.stash[RUN].options.snapshots
        return str(places.of_module(Path(test_location.filepath)))

    @classmethod
    def discovery_dirname(cls, *, test_location: PyTestLocation) -> str:
        """Return the folder that syrupy searches for unused snapshots; see `discover_snapshots`."""
        return cls.dirname(test_location=test_location)

    def discover_snapshots(self, **_options: Any) -> SnapshotCollections:
        """Return no snapshots, because `ownership` finds the unused ones."""
        return SnapshotCollections()

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: Any = 0) -> str:
        """Return the file's name without extension: the test's name, with ``[name]`` for a named snapshot."""
        suffix = f"[{index}]" if isinstance(index, str) else ""
        return safe_name(f"{test_location.snapshot_name}{suffix}")

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        """Return whether a file is in the folder of the test's module."""
        return Path(snapshot_location).parent == Path(cls.dirname(test_location=test_location))

    def read_snapshot_data_from_location(self, *, snapshot_location: str, **_options: Any) -> str | None:
        """Return the stored text; see `read_text`."""
        return read_text(Path(snapshot_location))

    @classmethod
    def write_snapshot_collection(cls, *, snapshot_collection: SnapshotCollection, **_options: Any) -> None:
        """Write the text of the file."""
        write_whole(Path(snapshot_collection.location), str(next(iter(snapshot_collection)).data))


def read_text(file: Path) -> str | None:
    """Return the text of a file; None if there is no such file.

    Bytes that are not UTF-8 become U+FFFD, so they are a damaged snapshot instead of a Python error. Windows line ends,
    which a version control system may write, become plain ones.

    Raises:
        OSError: The file exists and cannot be read.
    """
    from pytest_nvfp4.isolation.door import DoorError
    from pytest_nvfp4.isolation.door.files import read_file

    try:
        data = read_file(file, source="it", most=_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DoorError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


def snapshot_file(item: pytest.Item, name: str | None) -> Path:
    """Return the file of a snapshot of a test."""
    index = 0 if name is None else name
    return Path(TextSnapshotExtension.get_location(test_location=PyTestLocation(item), index=index))


def settle(item: pytest.Item, text: str, *, name: str | None, passes: bool, may_write: bool) -> bool:
    """Count a comparison in syrupy, and write the text with ``--snapshot-update``.

    Args:
        item: The test.
        text: The received text.
        name: Name of the snapshot within the test, or None.
        passes: Whether the text passes against the stored one. When updating, a text that differs is written.
        may_write: Whether ``--snapshot-update`` applies.

    Returns:
        Whether the text passes or was written.

    Raises:
        OSError: The text could not be written; the stored text is unchanged.
    """
    session = syrupy_session(item.config)
    updates = item.config.stash[RUN].options.update and may_write
    new_only = bool(item.config.getoption("update_new_snapshots_only", default=False)) and may_write
    assertion = SnapshotAssertion(
        update_snapshots=updates,
        update_new_snapshots_only=updates or new_only,
        extension_class=TextSnapshotExtension,
        test_location=PyTestLocation(item),
        session=session,
    )
    extension = assertion.extension
    assert isinstance(extension, TextSnapshotExtension)
    extension.passes = None if updates else passes
    matched = bool(assertion == text) if name is None else bool(assertion(name=name) == text)
    # At the end of a run with xdist, syrupy removes a lock file for each file that it wrote, and raises if its
    # folder is missing. These files have no locks, because each is written by one rename.
    getattr(session, "_written_snapshot_locations", set()).discard(str(snapshot_file(item, name)))
    if (exception := assertion.executions[0].exception) is not None:
        raise exception
    return matched


def syrupy_session(config: pytest.Config) -> Any:
    """Return syrupy's session. Raises CheckFailure if syrupy's plugin is not active."""
    session = getattr(config, "_syrupy", None)  # syrupy has no public access to its session
    if session is None:
        raise CheckFailure(
            "snapshots need syrupy, whose plugin is not part of this run (disabled with -p no:syrupy?); add "
            "-p syrupy, or select checks that compare no snapshots: -k compile"
        )
    return session

"""Snapshots with syrupy: when they match and how they are written.

Which snapshots are unused is decided in `ownership`, not by syrupy, whose rules for shared folders are made for other
layouts of the folder. Where they lie is decided in `places`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollection, SnapshotCollections
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation

from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.places import folder_of, safe_name
from pytest_nvfp4.plugin.state import RUN
from pytest_nvfp4.plugin.writing import write_whole

USED = pytest.StashKey[set[str]]()
"""Files of the snapshots that an item compared."""


class TextSnapshotExtension(SingleFileSnapshotExtension):
    """One text file a snapshot, written whole or not at all.

    ``passes`` is the verdict of the comparison in hand, which is made by meaning before syrupy is asked; None to let
    the texts decide.
    """

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
    write_immediately = True
    passes: bool | None = None

    def serialize(self, data: Any, **_options: Any) -> str:
        """The text itself."""
        return str(data)

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        """Whether the received text passes against the stored one."""
        return bool(serialized_data == snapshot_data) if self.passes is None else self.passes

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        """The folder of the test module's snapshots."""
        options = test_location.item.config.stash[RUN].options
        return str(folder_of(Path(test_location.filepath), root=options.root, snapshots=options.snapshots))

    @classmethod
    def discovery_dirname(cls, *, test_location: PyTestLocation) -> str:
        """Where syrupy may look; it is told nothing there (see ``discover_snapshots``)."""
        return cls.dirname(test_location=test_location)

    def discover_snapshots(self, **_options: Any) -> SnapshotCollections:
        """Nothing: unused snapshots are found by `ownership`, which knows what ran."""
        return SnapshotCollections()

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: Any = 0) -> str:
        """The file's name without its extension: the test's name, with ``[name]`` for a named snapshot."""
        suffix = f"[{index}]" if isinstance(index, str) else ""
        return safe_name(f"{test_location.snapshot_name}{suffix}")

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        """Whether a file is in the folder of the test's module."""
        return Path(snapshot_location).parent == Path(cls.dirname(test_location=test_location))

    def read_snapshot_data_from_location(self, *, snapshot_location: str, **_options: Any) -> str | None:
        """The stored text, or None when there is none; see ``recall``."""
        return recall(Path(snapshot_location))

    @classmethod
    def write_snapshot_collection(cls, *, snapshot_collection: SnapshotCollection, **_options: Any) -> None:
        """Write the one text of the file."""
        write_whole(Path(snapshot_collection.location), str(next(iter(snapshot_collection)).data))


def recall(file: Path) -> str | None:
    """The text of a file, or None when there is no such file.

    Bytes that are not UTF-8 become U+FFFD, and so end as a damaged snapshot rather than as an error of Python's; the
    line ends of Windows, which a version control system may put there, become plain ones.

    Raises:
        OSError: there is something, but it cannot be read.
    """
    try:
        return file.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")
    except (FileNotFoundError, NotADirectoryError):
        return None


class TextSnapshots:
    """Compares texts with the stored snapshots of one test.

    It is syrupy's assertion underneath, so ``--snapshot-update`` and syrupy's counts work as its users expect.

    Raises:
        CheckFailure: syrupy is not part of this run.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._session: Any = getattr(item.config, "_syrupy", None)  # syrupy has no public way to its session
        if self._session is None:
            raise CheckFailure(
                "snapshots need syrupy, whose plugin is not part of this run (switched off with -p no:syrupy?); add "
                "-p syrupy, or leave the checks out that compare with snapshots: -k compile"
            )

    @property
    def updating(self) -> bool:
        """Whether ``--snapshot-update`` was given."""
        return self._item.config.stash[RUN].options.update

    def location(self, name: str | None) -> Path:
        """The file of a snapshot of this test."""
        return Path(
            TextSnapshotExtension.get_location(
                test_location=PyTestLocation(self._item), index=0 if name is None else name
            )
        )

    def claim(self, name: str | None) -> Path:
        """The file of a snapshot, which this test compares from here on, and nothing else.

        Raises:
            CheckFailure: it compared a snapshot of that name before.
        """
        location = self.location(name)
        used = self._item.stash.setdefault(USED, set())
        if str(location) in used:
            called = "without a name" if name is None else f"named {name!r}"
            raise CheckFailure(
                f"{self._item.nodeid} compares a second snapshot {called}, which would be the same file; give each "
                'a name of its own: layout_snapshot(trace, name="...")'
            )
        used.add(str(location))
        return location

    def settle(self, text: str, *, name: str | None, passes: bool, may_write: bool = True) -> bool:
        """Count the comparison, and store the text where the command line asks for that.

        Args:
            text: The received text.
            name: Name of the snapshot within the test, or None.
            passes: Whether it passes against the stored one; when updating, every other text is written.
            may_write: False to write nothing, whatever the command line says.

        Returns:
            Whether it passes or was written.

        Raises:
            OSError: it was to be written and could not be; what was there is unchanged.
        """
        config = self._item.config
        new_only = bool(config.getoption("update_new_snapshots_only", default=False))
        assertion = SnapshotAssertion(
            update_snapshots=self.updating and may_write,
            update_new_snapshots_only=(self.updating or new_only) and may_write,
            extension_class=TextSnapshotExtension,
            test_location=PyTestLocation(self._item),
            session=self._session,
        )
        extension = assertion.extension
        assert isinstance(extension, TextSnapshotExtension)
        extension.passes = None if self.updating and may_write else passes
        matched = bool(assertion == text) if name is None else bool(assertion(name=name) == text)
        # With xdist, syrupy removes the lock of each file it wrote at the end, and breaks where the folder is none.
        # These files have no locks: each is written by one rename.
        getattr(self._session, "_written_snapshot_locations", set()).discard(str(self.location(name)))
        exception = assertion.executions[0].exception
        if exception is not None:
            raise exception
        return matched

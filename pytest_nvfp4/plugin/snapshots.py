"""Snapshots with syrupy: where they lie, when they match, and how they are written.

A snapshot of ``tests/test_x.py::test_a`` or ``kernels/x.py::layouts[p]`` is
``<root>/snapshots/<path without .py>/<name>.txt``: one folder a module, so that its owner can always be told. Which
snapshots are unused is decided in ``ownership``, not by syrupy, whose rules for shared folders are made for other
layouts of the folder.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollection, SnapshotCollections
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation

from pytest_nvfp4.plugin.state import RUN, safe_name


def snapshot_folder(path: Path, *, root: Path, snapshots: Path) -> Path:
    """The folder of a module's snapshots; beside the module where that lies outside the root."""
    resolved = path.resolve()
    try:
        relative = resolved.relative_to(root.resolve())
    except ValueError:
        return resolved.parent / snapshots.name / resolved.stem
    return snapshots / relative.with_suffix("")


class TextSnapshotExtension(SingleFileSnapshotExtension):
    """One text file a snapshot, written whole or not at all.

    ``equal`` decides whether a received text matches the stored one; it is set for each comparison. The folder is
    set when pytest is configured: syrupy asks for locations by class, also in xdist's controller, where there is no
    item to ask.
    """

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
    write_immediately = True
    root: ClassVar[Path] = Path()
    snapshots: ClassVar[Path] = Path("snapshots")
    equal: Callable[[str, str], bool] | None = None

    def serialize(self, data: Any, **_options: Any) -> str:
        """The text itself."""
        return str(data)

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        """Whether the received text passes against the stored one."""
        if self.equal is None:
            return bool(serialized_data == snapshot_data)
        return self.equal(snapshot_data, serialized_data)

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        """The folder of the test module's snapshots."""
        return str(snapshot_folder(Path(test_location.filepath), root=cls.root, snapshots=cls.snapshots))

    @classmethod
    def discovery_dirname(cls, *, test_location: PyTestLocation) -> str:
        """Where syrupy may look; it is told nothing there (see ``discover_snapshots``)."""
        return cls.dirname(test_location=test_location)

    def discover_snapshots(self, **_options: Any) -> SnapshotCollections:
        """Nothing: unused snapshots are found by ``ownership``, which knows what ran."""
        return SnapshotCollections()

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: Any = 0) -> str:
        """The file's name without its extension: the test's name, with ``[name]`` for a named snapshot."""
        return safe_name(super().get_snapshot_name(test_location=test_location, index=index))

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        """Whether a file is in the folder of the test's module."""
        return Path(snapshot_location).parent == Path(cls.dirname(test_location=test_location))

    @classmethod
    def write_snapshot_collection(
        cls, *, snapshot_collection: SnapshotCollection, name_order: dict[str, int] | None = None
    ) -> None:
        """Write beside the file and rename, so that nobody ever sees half of it."""
        del name_order
        target = Path(snapshot_collection.location)
        data = next(iter(snapshot_collection)).data
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            beside = Path(file.name)
            try:
                file.write(str(data))
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    beside.unlink()
                raise
        try:
            beside.chmod(0o644)
            beside.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


class TextSnapshot:
    """Compares texts with the stored snapshots of one test.

    It is syrupy's assertion underneath, so ``--snapshot-update`` and syrupy's counts work as its users expect.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._names: set[str] = set()

    def location(self, name: str | None) -> Path:
        """The file of a snapshot of this test."""
        assertion = self._assertion()
        index: Any = name or 0
        return Path(assertion.extension.get_location(test_location=assertion.test_location, index=index))

    def recall(self, name: str | None) -> str | None:
        """The stored text, or None when there is none. Raises OSError, UnicodeDecodeError."""
        try:
            return self.location(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    @property
    def updating(self) -> bool:
        """Whether ``--snapshot-update`` was given."""
        return bool(self._item.config.getoption("update_snapshots"))

    @property
    def updating_new(self) -> bool:
        """Whether ``--snapshot-update`` or ``--snapshot-update-new-only`` was given."""
        return self.updating or bool(self._item.config.getoption("update_new_snapshots_only", default=False))

    def _assertion(self, *, update: bool | None = None) -> SnapshotAssertion:
        config = self._item.config
        return SnapshotAssertion(
            update_snapshots=self.updating if update is None else update,
            update_new_snapshots_only=self.updating_new if update is None else update,
            extension_class=TextSnapshotExtension,
            test_location=PyTestLocation(self._item),
            session=config._syrupy,  # type: ignore[attr-defined]
        )

    def compare(
        self, text: str, *, name: str | None, equal: Callable[[str, str], bool], may_write: bool = True
    ) -> tuple[bool, Exception | None]:
        """Compare with the stored snapshot, or store it where the command line asks for that.

        Args:
            text: The received text.
            name: Name of the snapshot within the test, or None.
            equal: Decides, from the stored and the received text, whether they match; not asked when updating, where
                every difference is written.
            may_write: False to only compare, whatever the command line says.

        Returns:
            Whether it matches or was written, and the exception that kept it from being written.

        Raises:
            ValueError: the test compared a snapshot of that name before.
        """
        location = self.location(name)
        if str(location) in self._names:
            raise ValueError(
                f"{self._item.nodeid} compares two snapshots in {location}: give each a name with name=..."
            )
        self._names.add(str(location))
        self._item.stash.setdefault(USED, set()).add(str(location))
        assertion = self._assertion(update=None if may_write else False)
        extension = assertion.extension
        assert isinstance(extension, TextSnapshotExtension)
        extension.equal = None if may_write and self.updating else equal
        matched = bool(assertion(name=name) == text) if name else bool(assertion == text)
        result = assertion.executions[0]
        return matched, result.exception


USED = pytest.StashKey[set[str]]()
"""Files of the snapshots that an item compared."""


def configure(config: pytest.Config) -> None:
    """Tell the extension where snapshots lie."""
    options = config.stash[RUN].options
    TextSnapshotExtension.root = options.root
    TextSnapshotExtension.snapshots = options.snapshots

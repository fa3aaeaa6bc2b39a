"""Unused snapshots: which files no test compares any more. A file is only removed if that is certain.

A snapshot file belongs to the module that its folder is named after. It is unused if

- its module no longer exists, and the run was asked to collect the place where it was; or
- its module was collected completely, all its items ran and passed, and none of them compared the file.

A run that selects (``-k``, ``-m``, ``--lf``, a node id, ``--nvfp4-problem``), fails, skips, stops early or is
interrupted never reports a snapshot of an affected module as unused, so ``--snapshot-update`` cannot delete the
snapshot of a check that did not run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin.checks.base import CheckItem
from pytest_nvfp4.plugin.options import Options
from pytest_nvfp4.plugin.places import owner_of

_FIXTURES = frozenset({"layout_snapshot", "nvfp4_fact_snapshot", "nvfp4_cost_snapshot", "nvfp4_model_snapshot"})
_MAGIC = b"# nvfp4-"
"""First bytes of every snapshot of this package; any other file is left alone."""


def may_compare(item: pytest.Item) -> bool:
    """Return whether an item may compare a snapshot: every test may, and a check item with a fixture for snapshots.

    The outcome of another check item (one that was skipped because it has no device) does not affect snapshots.
    """
    return not isinstance(item, CheckItem) or not _FIXTURES.isdisjoint(item.fixturenames)


@dataclass(slots=True)
class Ledger:
    """Record of the snapshots and outcomes of a run. Each test process has one, and xdist's controller merges them.

    Paths are resolved, so that each module has one name.

    Attributes:
        modules: Modules that were collected, with or without items.
        items: Node ids of each module's items that may compare snapshots.
        checks: Names of the checks that have items in each module.
        partial: Modules with a deselected item, and modules that could not be collected.
        used: Snapshot files that were compared.
        passed: Node ids of items that passed.
        not_passed: Node ids of items that failed or were skipped.
        failed: Node ids of items that failed.
        left_out: Module and name of each check of which an item was deselected.
    """

    modules: set[str] = field(default_factory=set)
    items: dict[str, set[str]] = field(default_factory=dict)
    checks: dict[str, set[str]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    not_passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)

    def collected(self, module: Path, *, whole: bool) -> None:
        """Record that a module was collected, or that it could not be."""
        name = str(module.resolve())
        self.modules.add(name)
        if not whole:
            self.partial.add(name)

    def deselected(self, items: Iterable[pytest.Item]) -> None:
        """Record items that will not run."""
        for item in items:
            if may_compare(item):
                self.partial.add(str(item.path.resolve()))
            if isinstance(item, CheckItem):
                self.left_out.add(f"{item.path.resolve()}::{item.check.name}")

    def selected(self, items: Iterable[pytest.Item]) -> None:
        """Record items that will run."""
        for item in items:
            if may_compare(item):
                module = str(item.path.resolve())
                self.items.setdefault(module, set()).add(item.nodeid)
                if isinstance(item, CheckItem):
                    self.checks.setdefault(module, set()).add(item.check.name)

    def whole(self, module: str) -> bool:
        """Return whether all items of a module ran and passed."""
        ids = self.items.get(module, set())
        return (
            module in self.modules
            and module not in self.partial
            and ids <= self.passed
            and ids.isdisjoint(self.not_passed)
        )

    def merge(self, sent: Mapping[str, Any]) -> None:
        """Add the ledger of a test process: the values of `dataclasses.asdict`."""
        for name in ("modules", "partial", "used", "left_out"):
            getattr(self, name).update(sent[name])
        for name in ("items", "checks"):
            for module, names in sent[name].items():
                getattr(self, name).setdefault(module, set()).update(names)


def unused(
    options: Options, ledger: Ledger, arguments: Sequence[str], *, not_made: Callable[[str, Sequence[str]], bool]
) -> list[Path]:
    """Return the snapshot files that no test compares any more, after a complete run.

    Args:
        options: Options of the run.
        ledger: The record of the run.
        arguments: The files, folders and node ids that pytest was asked to run.
        not_made: Returns whether options left out the check that compares a snapshot, of the name of its file and the
            checks that have items (see `CheckRegistry.not_made`).
    """
    whole = [(options.here / argument).resolve() for argument in arguments if "::" not in argument]
    by_node = {str((options.here / argument.split("::")[0]).resolve()) for argument in arguments if "::" in argument}
    files = []
    for file, owner in _snapshots(options, [*whole, *map(Path, ledger.modules)]):
        if str(file) in ledger.used:
            continue
        module = owner.resolve()
        if not module.exists():
            gone = any(module.is_relative_to(argument) for argument in whole)
        else:
            gone = str(module) not in by_node and ledger.whole(str(module))
            gone = gone and not not_made(file.stem, sorted(ledger.checks.get(str(module), ())))
        if gone:
            files.append(file)
    return files


def _snapshots(options: Options, asked: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Return the snapshot files of the projects of some files and folders, each with the module that it belongs to."""
    places = options.snapshots
    found = []
    for root in sorted({places.root_of(path / "a.py" if path.is_dir() else path) for path in asked}):
        folder = places.of_root(root)
        for file in sorted(folder.rglob("*.txt")):
            owner = owner_of(file, root=root, snapshots=folder)
            if owner is not None and _is_snapshot(file):
                found.append((file, owner))
    return found


def _is_snapshot(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def remove(files: Iterable[Path], options: Options) -> dict[Path, OSError]:
    """Delete snapshot files and the folders that become empty; return the errors of files that remain."""
    left: dict[Path, OSError] = {}
    kept = options.snapshots.folders
    for file in files:
        try:
            file.unlink()
        except OSError as error:
            left[file] = error
            continue
        with contextlib.suppress(OSError):  # rmdir raises at the first folder that is not empty
            for folder in file.parents:
                if folder in kept:
                    break
                folder.rmdir()
    return left

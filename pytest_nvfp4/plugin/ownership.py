"""Which snapshots are unused, decided by what ran, and removed only when that is certain.

A snapshot file belongs to the module its folder is named after. It is unused when

- its module no longer exists, and the run was asked to look where it was; or
- its module was collected whole, every one of its items ran and passed, and none of them compared that file.

A run that selects (``-k``, ``-m``, ``--lf``, a node id, ``--nvfp4-problem``), fails, skips, stops early or is
interrupted never calls a snapshot of an affected module unused, so ``--snapshot-update`` cannot delete what a check
did not get to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin.options import Options
from pytest_nvfp4.plugin.places import owner_of
from pytest_nvfp4.plugin.state import Case

_FIXTURES = frozenset({"layout_snapshot", "nvfp4_fact_snapshot", "nvfp4_cost_snapshot"})
_COST = "cost["
"""How the names of snapshots begin whose checks are not made in runs that simulate nothing."""
_MARK = b"# nvfp4-"
"""How every snapshot begins; a file that does not is none of ours, wherever it lies."""


def may_compare(item: pytest.Item) -> bool:
    """Whether an item may compare a snapshot: every test may, and of the checks of kernels those that ask for one.

    What becomes of the others (a check that was skipped for want of a device) says nothing about snapshots.
    """
    if not isinstance(getattr(item, "case", None), Case):
        return True
    return not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@dataclass(slots=True)
class Ledger:
    """What happened in a run, as far as snapshots go; a test process fills one, and xdist's controller adds them up.

    Paths are resolved, so that a module has one name.

    Attributes:
        modules: Modules that were collected, with items or without.
        items: Node ids of each module's items, as far as they may compare snapshots.
        partial: Modules of which an item was left out, or that could not be collected.
        used: Snapshot files that were compared.
        ok: Node ids of items that ran to their end and passed.
        bad: Node ids of items that failed, were skipped, or broke.
        failed: Those that failed or broke.
    """

    modules: set[str] = field(default_factory=set)
    items: dict[str, set[str]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    ok: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def collected(self, module: Path, *, whole: bool) -> None:
        """A module was collected, or could not be."""
        name = str(module.resolve())
        self.modules.add(name)
        if not whole:
            self.partial.add(name)

    def left_out(self, items: Iterable[pytest.Item]) -> None:
        """These items are not to run."""
        self.partial.update(str(item.path.resolve()) for item in items if may_compare(item))

    def to_run(self, items: Iterable[pytest.Item]) -> None:
        """These items are to run."""
        for item in items:
            if may_compare(item):
                self.items.setdefault(str(item.path.resolve()), set()).add(item.nodeid)

    def whole(self, module: str) -> bool:
        """Whether all of a module is known to have run and passed."""
        ids = self.items.get(module, set())
        return module in self.modules and module not in self.partial and ids <= self.ok and not ids & self.bad

    def to_dict(self) -> dict[str, Any]:
        """The part that a test process sends to the controller, as plain values; the controller sees each outcome."""
        return {
            "modules": sorted(self.modules),
            "items": {path: sorted(ids) for path, ids in self.items.items()},
            "partial": sorted(self.partial),
            "used": sorted(self.used),
        }

    def merge(self, data: dict[str, Any]) -> None:
        """Add what a test process sent."""
        self.modules.update(data["modules"])
        for path, ids in data["items"].items():
            self.items.setdefault(path, set()).update(ids)
        self.partial.update(data["partial"])
        self.used.update(data["used"])


def unused(options: Options, ledger: Ledger, arguments: Sequence[str]) -> list[Path]:
    """The snapshot files that nothing uses any more, of a run that came to its end.

    Args:
        options: Where snapshots lie.
        ledger: What happened.
        arguments: What pytest was asked to run, as on its command line.
    """
    if not options.snapshots.is_dir():
        return []
    whole = [(options.here / argument).resolve() for argument in arguments if "::" not in argument]
    by_node = {str((options.here / argument.split("::")[0]).resolve()) for argument in arguments if "::" in argument}
    found = []
    for file in sorted(options.snapshots.rglob("*.txt")):
        owner = owner_of(file, root=options.root, snapshots=options.snapshots)
        if owner is None or str(file) in ledger.used or not _is_ours(file):
            continue
        module = owner.resolve()
        if not module.exists():
            gone = any(module.is_relative_to(argument) for argument in whole)
        else:
            gone = str(module) not in by_node and ledger.whole(str(module)) and _was_due(file, module, ledger)
        if gone:
            found.append(file)
    return found


def _was_due(file: Path, module: Path, ledger: Ledger) -> bool:
    """Whether a check that compares such a snapshot was part of the run: a run that simulates nothing has no costs."""
    if not file.name.startswith(_COST):
        return True
    return any(nodeid.rpartition("::")[2].startswith(_COST) for nodeid in ledger.items.get(str(module), ()))


def _is_ours(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MARK)) == _MARK
    except OSError:
        return False


def remove(files: Iterable[Path], options: Options) -> dict[Path, OSError]:
    """Delete snapshot files and the folders that are then empty; those that could not be deleted, and why."""
    left: dict[Path, OSError] = {}
    for file in files:
        try:
            file.unlink()
        except OSError as error:
            left[file] = error
            continue
        with contextlib.suppress(OSError):  # the first folder that is not empty ends it
            for folder in file.parents:
                if folder == options.snapshots:
                    break
                folder.rmdir()
    return left

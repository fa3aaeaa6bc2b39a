"""Which snapshots are unused, decided by what ran, and removed only when that is certain.

A snapshot file belongs to the module its folder is named after. It is unused when

- its module no longer exists, and the run covered the folder where it was; or
- its module was collected whole, every one of its items ran and passed, and none of them compared that file.

A run that selects (``-k``, ``-m``, ``--lf``, a node id), fails, skips, stops early or is interrupted never calls a
snapshot of an affected module unused, so ``--snapshot-update`` cannot delete what a check did not get to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin.options import Options


@dataclass(slots=True)
class Ledger:
    """What happened in a run, as far as snapshots go; a test process fills one, and xdist's controller adds them up.

    Attributes:
        collected: Items of each module, by its path.
        deselected: Modules of which an item was left out.
        used: Snapshot files that were compared.
        ok: Items that ran to their end and passed.
        bad: Items that failed, were skipped, or broke.
        incomplete: Modules that could not be collected.
    """

    collected: dict[str, set[str]] = field(default_factory=dict)
    deselected: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    ok: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    incomplete: set[str] = field(default_factory=set)

    def add_items(self, items: Iterable[pytest.Item]) -> None:
        """Note the items that are to run."""
        for item in items:
            self.collected.setdefault(str(item.path), set()).add(item.nodeid)

    def to_dict(self) -> dict[str, Any]:
        """The part that a test process sends to the controller, as plain values."""
        return {
            "collected": {path: sorted(ids) for path, ids in self.collected.items()},
            "deselected": sorted(self.deselected),
            "used": sorted(self.used),
            "incomplete": sorted(self.incomplete),
        }

    def merge(self, data: dict[str, Any]) -> None:
        """Add what a test process sent."""
        for path, ids in data["collected"].items():
            self.collected.setdefault(path, set()).update(ids)
        self.deselected.update(data["deselected"])
        self.used.update(data["used"])
        self.incomplete.update(data["incomplete"])


def _module_of(file: Path, options: Options) -> Path | None:
    """The module that a snapshot file belongs to: the folder's path below the snapshots, as a .py file."""
    try:
        relative = file.parent.relative_to(options.snapshots)
    except ValueError:
        return None
    return (options.root / relative).with_suffix(".py") if relative.parts else None


def _covered(module: Path, arguments: list[Path]) -> bool:
    """Whether the run was asked to look into the folder of a module (or at the module itself)."""
    return any(module == argument or module.is_relative_to(argument) for argument in arguments)


def unused(options: Options, ledger: Ledger, arguments: list[str], *, base: Path, complete: bool) -> list[Path]:
    """The snapshot files that nothing uses any more.

    Args:
        options: Where snapshots lie.
        ledger: What happened.
        arguments: What pytest was asked to run, as on its command line.
        base: The folder the arguments are relative to.
        complete: The run came to its end: it was neither stopped nor interrupted, and no process was lost.
    """
    if not complete or not options.snapshots.is_dir():
        return []
    whole = [(base / argument).resolve() for argument in arguments if "::" not in argument]
    by_node = {(base / argument.split("::")[0]).resolve() for argument in arguments if "::" in argument}
    found = []
    for file in sorted(options.snapshots.rglob("*.txt")):
        module = _module_of(file, options)
        if module is None or str(file) in ledger.used:
            continue
        module = module.resolve()
        if not module.exists():
            if _covered(module, whole):
                found.append(file)
            continue
        name = str(module)
        if module in by_node or name in ledger.deselected or name in ledger.incomplete:
            continue
        ids = ledger.collected.get(name)
        if ids and ids <= ledger.ok and not ids & ledger.bad:
            found.append(file)
    return found


def remove(files: Iterable[Path], options: Options) -> list[Path]:
    """Delete snapshot files and the folders that are then empty; those that could not be deleted are returned."""
    left = []
    for file in files:
        try:
            file.unlink()
        except OSError:
            left.append(file)
            continue
        folder = file.parent
        while folder != options.snapshots and folder.is_relative_to(options.snapshots):
            with contextlib.suppress(OSError):
                folder.rmdir()
            if folder.exists():
                break
            folder = folder.parent
    return left

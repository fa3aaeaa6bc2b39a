"""Runs that must leave snapshots alone."""

from __future__ import annotations

from pathlib import Path

from tests.plugin.conftest import Project


def unharmed(project: Project, *args: str | Path, update: bool = True) -> None:
    """A run reports nothing as unused, and with ``--snapshot-update`` removes nothing."""
    before = project.snapshots()
    ran = project.run(*args)
    assert "unused" not in ran.text.lower(), ran.text
    if update:
        ran = project.run(*args, "--snapshot-update")
        assert "unused" not in ran.text.lower(), ran.text
    assert project.snapshots() == before

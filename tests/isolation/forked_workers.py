"""Helpers for workers that a fork server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.launcher import worker

from .conftest import Workers


def stdout_of(outcome: Outcome) -> str:
    return outcome.stdout.text


def launcher_with(workers: Workers, **modules: str) -> tuple[str, ...]:
    """Return a launcher for a copy of the package with further modules."""
    package = workers.folder / "copied" / "pytest_nvfp4"
    *interpreter, folder = worker("the_worker").launcher
    for file in [
        Path(folder, "__init__.py"),
        *(Path(folder, f"{name}.py") for name in ("activity", "collection", "sandbox_mode", "text")),
        *Path(folder, "isolation").rglob("*.py"),
    ]:
        target = package / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    for name, source in modules.items():
        (package / f"{name}.py").write_text(source)
    return (*interpreter, str(package))


def in_a_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread

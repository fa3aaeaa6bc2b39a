"""The file of the settings, and the root of its project."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pytest_nvfp4.settings.error import SettingsError
from pytest_nvfp4.settings.project import Settings
from pytest_nvfp4.settings.section import parse

_MOST_BYTES = 16 << 20


def load(root: Path, *, file: Path | None = None) -> Settings:
    """Return the settings of ``file``, or of the pyproject.toml in ``root``; the defaults if there is none.

    Raises:
        SettingsError: The file is not TOML, or a setting cannot be used.
    """
    path = file or root / "pyproject.toml"
    if not path.is_file():
        return Settings(root)
    try:
        data = tomllib.loads(_content(path).decode())
    except (OSError, ValueError, RecursionError) as error:  # tomllib raises both for numbers and nesting without end
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"{path}: cannot be read as TOML: {reason}") from error
    return parse(data, file=path)


def find_root(start: Path) -> Path:
    """Return the root of the project that contains a path.

    It is the nearest folder at or above ``start`` whose pyproject.toml has ``[tool.pytest_nvfp4]``, else the nearest
    one with a pyproject.toml or a .git folder, else ``start``.
    """
    folder = start.resolve()
    folder = folder if folder.is_dir() else folder.parent
    nearest: Path | None = None
    for candidate in (folder, *folder.parents):
        pyproject = candidate / "pyproject.toml"
        if pyproject.is_file():
            if _names_this_package(pyproject):
                return candidate
            nearest = nearest or candidate
        elif (candidate / ".git").exists():
            nearest = nearest or candidate
    return nearest or folder


def _names_this_package(pyproject: Path) -> bool:
    try:
        return b"pytest_nvfp4" in _content(pyproject)
    except (ValueError, OSError):
        return False  # `load` reports it, if it is the file of this run


def _content(file: Path) -> bytes:
    """Return the content of a regular file. Raises OSError, and ValueError for one that is too large.

    Every run of pytest reads the settings, also without kernels, so this needs nothing of ``isolation``.
    """
    if (size := file.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"it has {size} bytes, and at most {_MOST_BYTES} are read")
    return file.read_bytes()

"""What a worker may change, and what it has changed.

The judge's own files (tests, snapshots, settings, this package) are in no candidate, whatever the configuration says.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.work import tree
from pytest_nvfp4.loop.work.tree import Entry, Known, TreeError
from pytest_nvfp4.settings import glob_pattern
from pytest_nvfp4.text import clip, visible

MOST_FILE_BYTES: Final = 4 << 20
"""Largest file of a candidate."""
MOST_ENTRIES: Final = 300_000
"""Largest number of files and folders of a checkout after a worker has run, caches included."""
_MOST_BYTES: Final = 32 << 20
"""Largest sum of all files that a worker may change."""
_MOST_VIOLATIONS: Final = 50
_FOLDERS: Final = frozenset(
    (
        *("tests", "test", "snapshots", "__snapshots__", ".git", ".github", ".ci", ".nvfp4", ".venv", "venv"),
        *("site-packages", "pytest_nvfp4"),
    )
)
_NAMES: Final = (
    *("conftest.py", "pyproject.toml", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("setup.cfg", "setup.py", "sitecustomize.py", "usercustomize.py", "*.pth", "test_*.py", "*_test.py"),
    *(".git*", "nvfp4-loop*.toml", "uv.lock", "requirements*.txt"),
)


class Policy:
    """What a worker may change.

    Args:
        kernel: The kernel file, which it may.
        may_change: Further files, folders (``name/``) or patterns; ``*`` stays within a folder, ``**`` does not.
        never: Further files and folders that it may not, beside tests, snapshots, settings and pytest's files.
        importable: Folders from which the judge's own process imports, beside the top and those of a ``conftest.py``.
        files: The files of the repository.

    Raises:
        ConfigError: A pattern would allow what is never allowed.
    """

    def __init__(
        self,
        kernel: str,
        may_change: Sequence[str] = (),
        *,
        never: Sequence[str] = (),
        importable: Sequence[str] = (),
        files: Collection[str] = (),
    ) -> None:
        self.kernel = str(PurePosixPath(kernel))
        self._patterns = [(text, _compiled(text)) for text in may_change]
        self._never = frozenset(str(PurePosixPath(name)) for name in never)
        folders = {str(PurePosixPath(path).parent) for path in files if PurePosixPath(path).name == "conftest.py"}
        self._importable = folders | {str(PurePosixPath(name)) for name in importable} | {"."}
        for text, pattern in self._patterns:
            if text.startswith("/") or ".." in text.split("/"):
                raise ConfigError(
                    [f"policy.may_change = {text!r} must be relative to the repository and stay below it"]
                )
            bare = text.rstrip("/").removesuffix("/**")
            named = [bare] if self.protected(bare) else []
            for path in [*named, *sorted(files)]:
                if path in named or (path != self.kernel and pattern.fullmatch(path) and self.protected(path)):
                    raise ConfigError(
                        [
                            f"policy.may_change = {text!r} would let a worker change {path}, and what judges a "
                            "candidate (tests, snapshots, settings, pytest's files) is never changed by one; name "
                            "other files"
                        ]
                    )

    def protected(self, path: str) -> bool:
        """Return whether a file judges candidates or decides how they are judged, so that no candidate changes it."""
        parts = PurePosixPath(path.casefold()).parts
        if any(part in _FOLDERS for part in parts):
            return True
        if any(fnmatch.fnmatchcase(part, name) for part in parts for name in _NAMES):
            return True
        own = PurePosixPath(path)
        return any(str(place) in self._never for place in (own, *own.parents))

    def allows(self, path: str) -> bool:
        """Return whether a worker may change, add or remove a file."""
        if path == self.kernel:
            return True
        return not self.protected(path) and any(pattern.fullmatch(path) for _, pattern in self._patterns)

    def shadows(self, path: str, known: Collection[str]) -> bool:
        """Return whether a new file gives the judge's own process a module that it did not have.

        Args:
            path: The file.
            known: The files and folders that were there.
        """
        own = PurePosixPath(path)
        return any(
            str(place.parent) in self._importable and str(place) not in known for place in (own, *own.parents[:-1])
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """What a worker has changed.

    Attributes:
        files: Content of the changed files that it may change; None for one that is gone.
        allowed: Content of all files that it may change, changed or not; for `source.source_sha256`.
        violations: All else that it has changed, a line each.
    """

    files: Mapping[str, bytes | None]
    allowed: Mapping[str, bytes | None]
    violations: tuple[str, ...]


def changes(
    policy: Policy,
    before: Mapping[str, Known],
    top: int,
    *,
    ignored: Callable[[Collection[str]], Collection[str]],
) -> Changes:
    """Compare the files below an open folder with what they were.

    Each file is read once, so that what is compared is what is returned.

    Args:
        policy: What may be changed.
        before: The files before the worker ran.
        top: Descriptor of the checkout.
        ignored: Returns those of some new paths that git ignores; they are in no candidate, and no violations.
    """
    files: dict[str, bytes | None] = {}
    allowed: dict[str, bytes | None] = {}
    violations: list[str] = []
    new: list[tuple[str, str]] = []
    seen: set[str] = set()
    names = _Names(before)
    left = _MOST_BYTES
    try:
        for entry in tree.entries(top, most=MOST_ENTRIES):
            seen.add(entry.path)
            known = before.get(entry.path)
            if policy.allows(entry.path):
                try:
                    data = _candidate_file(policy, entry, names, most=min(left, MOST_FILE_BYTES))
                except TreeError as error:
                    violations.append(f"{_name(entry.path)} {error}")
                    continue
                left -= len(data)
                allowed[entry.path] = data
                if known is None or hashlib.sha256(data).digest() != known.digest:
                    files[entry.path] = data
            elif known is None:
                new.append((entry.path, entry.what))
            elif problem := _difference(entry, known):
                violations.append(f"{_name(entry.path)} {problem}")
    except TreeError as error:
        return Changes({}, {}, (f"the worktree {error}",))
    for path in sorted(before.keys() - seen):
        if policy.allows(path) and path != policy.kernel:
            files[path] = allowed[path] = None
        else:
            violations.append(f"{_name(path)} is gone")
    passed = set(ignored([path for path, _ in new if not _in_git(path)])) if new else set()
    violations += [f"{_name(path)} is {what} that was not there" for path, what in new if path not in passed]
    if len(violations) > _MOST_VIOLATIONS:
        violations[_MOST_VIOLATIONS:] = [f"and {len(violations) - _MOST_VIOLATIONS} more changes"]
    return Changes(files, allowed, tuple(violations))


def of_settings(pyproject: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a ``pyproject.toml`` tells pytest: the folder of snapshots, and folders from which it imports."""
    try:
        table = tomllib.loads(pyproject.decode())["tool"]["pytest"]
        options = {**table, **table.get("ini_options", {})}
        snapshots, paths = options.get("nvfp4_snapshots"), options.get("pythonpath", ())
        paths = paths.split() if isinstance(paths, str) else paths
        return (str(snapshots),) if snapshots else (), tuple(map(str, paths))
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return (), ()


class _Names:
    """The names of a checkout before a worker ran."""

    def __init__(self, before: Mapping[str, Known]) -> None:
        self.files = before

    @cached_property
    def all(self) -> frozenset[str]:
        """All files and folders."""
        return frozenset(
            str(place) for path in self.files for place in (PurePosixPath(path), *PurePosixPath(path).parents)
        )

    @cached_property
    def folded(self) -> dict[str, str]:
        """All files and folders by what file systems without case or composition make of their names."""
        return {_folded(name): name for name in self.all}


def _candidate_file(policy: Policy, entry: Entry, names: _Names, *, most: int) -> bytes:
    """Return the content of a file that may be changed. Raises TreeError: it is none that a commit can hold."""
    if not entry.regular:
        raise TreeError(f"is {entry.what}, and not a file")
    if entry.status.st_nlink != 1:
        raise TreeError("is a hard link, and links are not followed")
    try:
        entry.path.encode()
    except UnicodeEncodeError:
        raise TreeError("has a name that is not UTF-8") from None
    if (known := names.files.get(entry.path)) is None:
        if policy.shadows(entry.path, names.all):
            raise TreeError("is new in a folder from which the judge's own process imports")
        if entry.path in names.all or any(str(place) in names.files for place in PurePosixPath(entry.path).parents):
            raise TreeError("is new where a folder or a file was, which git cannot hold together")
        for place in (PurePosixPath(entry.path), *PurePosixPath(entry.path).parents):
            if (twin := names.folded.get(_folded(str(place)), str(place))) != str(place):
                raise TreeError(f"differs from {_name(twin)} in case or composition only")
    elif known.link:
        raise TreeError("was a link")
    return entry.read(most)


def _difference(entry: Entry, known: Known) -> str:
    """Return how a file that may not change differs from what it was, as a predicate; empty if it does not."""
    link = entry.what == "a link"
    if not (entry.regular or link):
        return f"is {entry.what} now"
    if link != known.link or entry.status.st_size != known.size:
        return "is changed"
    try:
        now = Known.of(entry, most=known.size)
    except TreeError as error:
        return str(error)
    if now.digest != known.digest:
        return "is changed"
    return "has another mode" if now.executable != known.executable else ""


def _in_git(path: str) -> bool:
    """Return whether a path lies in a repository below the top, which git would not look into."""
    return any(part.casefold() == ".git" for part in path.split("/"))


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _name(path: str) -> str:
    return clip(visible(path), 300)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of paths; ``name/`` is all below a folder. Raises ConfigError."""
    text = pattern.removeprefix("./")
    try:
        return glob_pattern(f"{text}**" if text.endswith("/") else text)
    except re.error as error:
        raise ConfigError([f"policy.may_change = {pattern!r} is no pattern of paths: {error}"]) from None

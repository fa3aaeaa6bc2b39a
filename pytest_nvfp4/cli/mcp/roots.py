"""The folders whose files tools may name."""

from __future__ import annotations

from itertools import islice
from pathlib import Path, PurePosixPath

from pytest_nvfp4.text import clip, visible

_MOST_ENTRIES = 10_000


class RefusedError(ValueError):
    """An argument of a tool is refused; the message says why, and the way out."""


class Roots:
    """Folders whose files tools may name. Relative paths begin at the first one.

    Args:
        folders: The folders.
        revisions: Whether files of git revisions may be named. git then runs with the repository's configuration.

    Raises:
        OSError: A folder does not exist.
    """

    def __init__(self, folders: tuple[Path, ...], *, revisions: bool = False) -> None:
        self.folders = tuple(folder.resolve(strict=True) for folder in folders)
        self.revisions = revisions
        for folder in self.folders:
            if not folder.is_dir():
                raise NotADirectoryError(20, "is not a folder", str(folder))

    def file(self, name: str, *, folder: bool = False) -> Path:
        """Return the absolute path of a regular file that lies below a root with all links resolved.

        The path begins with a slash, so that no command takes it for an option, whatever the file's name is.

        Args:
            name: Absolute, or relative to the first root.
            folder: Whether a folder without links is accepted too.

        Raises:
            RefusedError: It leads out of the roots, does not exist, or is no regular file.
        """
        shown = visible(clip(name, 200))
        if not name or "\0" in name:
            raise RefusedError(f"{shown!r} names no file")
        try:
            path = (self.folders[0] / name).resolve()
            inside = any(path.is_relative_to(root) for root in self.folders)
            found = inside and path.exists()
            kind = "file" if path.is_file() else "folder" if path.is_dir() else ""
        except (OSError, RuntimeError, ValueError) as error:
            raise RefusedError(f"{shown}: cannot be resolved: {error}") from error
        roots = ", ".join(map(str, self.folders))
        if not inside:
            raise RefusedError(
                f"{shown}: leads out of the folders of this server ({roots}); a person adds one with "
                "`nvfp4 mcp --root DIR`"
            )
        if not found:
            raise RefusedError(f"{shown}: no such file below {roots}")
        if kind == "folder" and folder:
            entries = list(islice(path.rglob("*"), _MOST_ENTRIES + 1))
            if len(entries) > _MOST_ENTRIES or any(entry.is_symlink() for entry in entries):
                raise RefusedError(
                    f"{shown}: holds links, which are not followed, or more than {_MOST_ENTRIES} files; name one file"
                )
        elif kind != "file":
            raise RefusedError(f"{shown}: is no regular file")
        return path

    def function(self, name: str) -> str:
        """Return ``[FILE::]FUNCTION`` with the file's absolute path. Raises RefusedError."""
        file, separator, function = name.rpartition("::")
        if not function.isidentifier():
            raise RefusedError(f"{visible(clip(name, 200))}: write it as FUNCTION or FILE::FUNCTION")
        return f"{self.file(file)}::{function}" if separator else function

    def side(self, name: str) -> str:
        """Return a file, or ``REV:path`` of a git revision, as a side of a comparison. Raises RefusedError."""
        revision, separator, path = name.partition(":")
        if not separator or Path(self.folders[0], name).exists():
            return str(self.file(name))
        if not self.revisions:
            raise RefusedError(
                f"{visible(clip(name, 200))}: git revisions are off, because git runs what the repository's "
                "configuration names; a person allows them with `nvfp4 mcp --revisions`"
            )
        parts = PurePosixPath(path).parts
        if not revision or revision.startswith("-") or not parts or ".." in parts or path.startswith("/"):
            raise RefusedError(f"{visible(clip(name, 200))}: write it as REV:path, relative to the repository")
        return name

"""Read files of a git revision without touching the working tree."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from filelock import FileLock

from pytest_nvfp4.cli.errors import InputError

_TIMEOUT_S = 120.0
_FLAT = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Revision:
    """A file of a git revision: ``REV:path``.

    Attributes:
        text: The argument.
        name: The revision in the argument.
        commit: Full id of its commit.
        repository: The top folder of the repository.
        path: Path of the file in the repository.
        prefix: Working folder within the repository, which relative options refer to.
    """

    text: str
    name: str
    commit: str
    repository: Path
    path: PurePosixPath
    prefix: PurePosixPath


def _git(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    git = shutil.which("git")
    if git is None:
        raise InputError("git is not installed, but needed to read a revision; install it, or name files")
    try:
        return subprocess.run(
            [git, *arguments],
            cwd=cwd,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"git {arguments[0]} did not finish within {_TIMEOUT_S:.0f} s") from error


def split(text: str) -> tuple[str, str] | None:
    """Split ``REV:path``, or return None. A colon within braces belongs to the revision (``main@{1 day ago}``)."""
    masked = _FLAT.sub(lambda match: "_" * len(match[0]), text)
    at = masked.find(":")
    return None if at < 0 else (text[:at], text[at + 1 :])


def find(text: str, *, cwd: Path) -> Revision:
    """Return the file that ``REV:path`` names in the repository around ``cwd``.

    ``path`` is relative to the top of the repository, as in git, or, if no such file exists, to ``cwd``.

    Raises:
        InputError: There is no repository, no such revision, or no such file in it.
    """
    parts = split(text)
    if parts is None or not parts[0] or not parts[1]:
        raise InputError(f"{text}: is not a file, and not REV:path of a git revision such as HEAD~1:kernels/gemm.py")
    name, file = parts
    where = _git("rev-parse", "--show-toplevel", "--show-prefix", cwd=cwd)
    if where.returncode:
        raise InputError(f"{text}: is not a file, and {cwd} is not in a git repository with a revision {name!r}")
    top, prefix = [os.fsdecode(line) for line in where.stdout.split(b"\n")[:2]]
    if name.startswith("-"):
        raise InputError(f"{text}: a revision cannot start with a dash")
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", cwd=cwd)
    if found.returncode:
        raise InputError(f"{text}: the repository {top} has no revision {name!r}")
    commit = found.stdout.decode().strip()
    for base in (PurePosixPath(), PurePosixPath(prefix)):
        path = _normal(base / file)
        if path is not None and _kind(commit, path, cwd=Path(top)) == "blob":
            return Revision(text, name, commit, Path(top), path, PurePosixPath(prefix))
    path = _normal(PurePosixPath(file))
    if path is not None and _kind(commit, path, cwd=Path(top)) == "tree":
        raise InputError(f"{text}: is a folder in revision {name}; name a file in it")
    raise InputError(f"{text}: revision {name} ({commit[:12]}) has no file {file!r}")


def _normal(path: PurePosixPath) -> PurePosixPath | None:
    """Return the path without ``.`` and ``..``, or None if it leaves the repository."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in {".", "/"}:
            parts.append(part)
        elif part == "/":
            return None
    return PurePosixPath(*parts) if parts else None


def _kind(commit: str, path: PurePosixPath, *, cwd: Path) -> str | None:
    done = _git("cat-file", "-t", f"{commit}:{path}", cwd=cwd)
    return done.stdout.decode().strip() if done.returncode == 0 else None


def read(revision: Revision) -> bytes:
    """Return the content of the file in the repository."""
    done = _git("cat-file", "blob", f"{revision.commit}:{revision.path}", cwd=revision.repository)
    if done.returncode:
        raise InputError(f"{revision.text}: git could not read it: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


@contextlib.contextmanager
def extracted(revision: Revision, *, below: Path) -> Iterator[Path]:
    """Extract the whole tree of a revision to a temporary folder, and remove it when the block ends.

    The folder's name depends on repository and commit only, so that the next run finds a trace made in it in the cache;
    a lock separates concurrent runs.

    Args:
        revision: The revision.
        below: Existing folder that receives the temporary folder.

    Raises:
        InputError: git cannot export the tree, or the export does not include the file.
    """
    folder = below / "revisions"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(f"{revision.repository}\0{revision.commit}".encode("utf-8", "surrogateescape")).hexdigest()[
        :24
    ]
    tree = folder / name
    with FileLock(folder / f"{name}.lock"):
        shutil.rmtree(tree, ignore_errors=True)  # left by a run that was killed
        try:
            tree.mkdir()
            _archive(revision, tree)
            if not (tree / revision.path).is_file():
                raise InputError(f"{revision.text}: git archive leaves this file out (export-ignore in .gitattributes)")
            yield tree
        finally:
            shutil.rmtree(tree, ignore_errors=True)


def _archive(revision: Revision, tree: Path) -> None:
    # Into a file: with a pipe, a reader that fails first would replace git's own error message.
    with tempfile.TemporaryFile() as archive:
        git = shutil.which("git") or "git"
        done = subprocess.run(
            [git, "archive", "--format=tar", revision.commit],
            cwd=revision.repository,
            stdout=archive,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            error = done.stderr.decode(errors="replace").strip()
            raise InputError(f"{revision.text}: git archive failed: {error}")
        archive.seek(0)
        unpack(archive, tree)


def unpack(archive: IO[bytes], tree: Path) -> None:
    """Write the regular files of a tar archive below a folder, then the links that stay within it.

    Members that would leave the folder are skipped: absolute names, names with ``..``, and links to other places. Links
    are written last, so that no file is written through one.
    """
    links: list[tuple[Path, str]] = []
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or not name.parts:
                continue
            place = tree / name
            if member.isfile():
                source = tar.extractfile(member)
                assert source is not None
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("wb") as file:
                    shutil.copyfileobj(source, file)
            elif member.issym():
                links.append((place, member.linkname))
    made = []
    for place, target in links:
        if _inside(place.parent, tree) and _inside(place.parent / target, tree):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
            made.append(place)
    for place in made:
        if not _inside(place, tree):  # by way of another link, made after it
            place.unlink()


def _inside(path: Path, tree: Path) -> bool:
    top = os.path.realpath(tree)
    return os.path.commonpath([top, os.path.realpath(path)]) == top


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its full id, the date of its author (ISO 8601) and its subject."""

    id: str
    date: str
    subject: str


def changed(folder: Path, *, cwd: Path, last: int) -> list[Commit]:
    """Return the newest commits that changed files of a folder, which need not exist any more, the newest first.

    Raises:
        InputError: The folder is in no repository.
    """
    top = _top(cwd, folder)
    form = "--format=%H%x00%aI%x00%s"
    done = _git("log", form, "--max-count", str(last), "--", str(folder.relative_to(top)), cwd=top)
    if done.returncode:  # a repository without a commit
        return []
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return [Commit(*line.split("\0", 2)) for line in lines if line.count("\0") >= 2]


def files_below(folder: Path, commit: str, *, cwd: Path) -> dict[str, bytes]:
    """Return the contents of the files of a folder in a commit, by name; files of folders in it are left out."""
    top = _top(cwd, folder)
    place = folder.relative_to(top).as_posix()
    done = _git("ls-tree", "-z", commit, "--", f"{place}/", cwd=top)
    found = {}
    for line in done.stdout.split(b"\0"):
        kind, _, path = line.partition(b"\t")
        if b" blob " in kind:
            name = os.fsdecode(path)
            content = _git("cat-file", "blob", os.fsdecode(kind.split()[2]), cwd=top)
            found[PurePosixPath(name).name] = content.stdout
    return found


def _top(cwd: Path, folder: Path) -> Path:
    done = _git("rev-parse", "--show-toplevel", cwd=cwd)
    top = Path(os.fsdecode(done.stdout.rstrip(b"\n")))
    if done.returncode or not folder.is_relative_to(top):
        raise InputError(f"{folder}: is in no git repository, so it has no history")
    return top

"""Files that ``nvfp4 exec`` copies to the program's working folder.

No link is followed out of the files that are mounted, and no file that looks like a credential (`credentials`) is sent
unless it is named.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.credentials import content_like_one, named_like_one
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file

MAX_BYTES = 64 << 20
"""Limit on the size of all mounted files."""
_NEVER_INSIDE = (".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache")
_SHOWN = 5
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_NO_FILE = re.compile(r"^FileNotFoundError: .*: '([^'\n]+)'$", re.MULTILINE)


@dataclass
class Named:
    """Files that look like credentials and are sent all the same, because the user named each.

    Attributes:
        paths: Their absolute paths, links resolved.
        used: Those of them that were found.
    """

    paths: frozenset[Path] = frozenset()
    used: set[Path] = field(default_factory=set)

    @classmethod
    def of(cls, names: Iterable[str]) -> Named:
        """Return the files of some names, relative to the working directory. Raises InputError."""
        paths = {name: Path(name).expanduser().resolve() for name in names}
        for name, path in paths.items():
            if not path.is_file():
                raise InputError(f"--mount-secret {name}: there is no such file; name each file with its path")
        return cls(frozenset(paths.values()))

    def check_used(self) -> None:
        """Raise InputError if a named file is not among the mounted ones: its name says something else than thought."""
        if unused := sorted(map(str, self.paths - self.used)):
            raise InputError(
                f"--mount-secret {unused[0]}: is not among the files of --mount and --mount-dir; leave it out, or "
                "mount its folder"
            )

    def has(self, path: Path) -> bool:
        """Return whether a file was named, and record that it was found."""
        if path in self.paths:
            self.used.add(path)
        return path in self.paths


def repository(start: Path) -> Path:
    """Return the root of the git repository around a folder, or the folder itself."""
    done = subprocess.run(
        ["git", "-C", str(start), "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False
    )
    return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else start.resolve()


def repository_files(root: Path, named: Named | None = None) -> dict[str, bytes]:
    """Return the files of a repository that git tracks or does not ignore, by relative path; without git, all files."""
    done = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return folder_files(root, PurePosixPath(), named)
    names = sorted({name for name in done.stdout.decode("utf-8", "surrogateescape").split("\0") if name})
    return _read(root, {PurePosixPath(name): PurePosixPath(name) for name in names}, named or Named())


def folder_files(
    local: Path, remote: PurePosixPath, named: Named | None = None, *, below: str = ""
) -> dict[str, bytes]:
    """Return every file below a folder, by its path below ``remote``; see `_read` for ``below``."""
    relative = [PurePosixPath(path.relative_to(local).as_posix()) for path in _walk(local)]
    return _read(local, {path: remote / path for path in relative}, named or Named(), below=below)


def mount(text: str, named: Named | None = None) -> dict[str, bytes]:
    """Return the files of ``LOCAL:REMOTE``. Raises InputError."""
    local_text, colon, remote_text = text.rpartition(":")
    local, remote = Path(local_text).expanduser(), PurePosixPath(remote_text)
    if not colon or not local_text or not remote_text:
        raise InputError(f"--mount-dir {text!r}: write it as LOCAL:REMOTE, such as data:data")
    if not local.is_dir():
        raise InputError(f"--mount-dir {text!r}: {local} is not a folder")
    if remote.is_absolute() or ".." in remote.parts:
        raise InputError(
            f"--mount-dir {text!r}: {remote} must lie below the program's working folder: give a relative path"
        )
    return folder_files(local, remote, named, below=local.resolve().name)


def not_found(program: Path, errors: str) -> str:
    """Return how to mount what a program did not find, if it lies in a folder above the program's file.

    Args:
        program: The file that was run.
        errors: What the program wrote to standard error.

    Returns:
        An advice; empty if no module or file was missing, or if none of the three nearest folders has it.
    """
    modules, files = _NO_MODULE.findall(errors), _NO_FILE.findall(errors)
    if modules:
        name = modules[-1].partition(".")[0]
        module = modules[-1].replace(".", "/")
        places = [f"{module}.py", module]
    else:
        name = Path(files[-1]).name if files else ""
        places = [name] if name else []
    for folder in program.resolve().parents[:3]:
        if any((folder / place).exists() for place in places):
            return f"{name} lies in {folder}, and not in the program's working folder: give --mount-dir {folder}:."
    return ""


def check_size(files: Mapping[str, bytes]) -> None:
    """Raise InputError if the files are too large to be sent with every run."""
    _check_sizes({name: len(data) for name, data in files.items()})


def _check_sizes(sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} ({output.size_text(sizes[name])})" for name in largest)
        raise InputError(
            f"the mounted files are {output.size_text(total)}, more than {output.size_text(MAX_BYTES)}; the largest "
            f"are {named}: let git ignore unneeded files, or mount a part with --mount-dir"
        )


def _walk(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from error
    for path in entries:
        if path.is_dir() and not path.is_symlink():
            if path.name not in _NEVER_INSIDE:
                yield from _walk(path)
        else:
            yield path


def _read(
    root: Path, paths: Mapping[PurePosixPath, PurePosixPath], named: Named, *, below: str = ""
) -> dict[str, bytes]:
    """Read files, and leave out and name the links that lead elsewhere and what looks like a credential.

    Args:
        root: The folder of the files.
        paths: The path of each file below the program's folder, by its path below ``root``.
        named: Files that are read although they look like credentials.
        below: Name of the folder, if it counts as a part of each path.
    """
    base = root.resolve()
    # A folder on the way may be a link too: what lies behind it has another path than the one it is listed with.
    own = {base / path for path in paths if not (base / path).is_symlink() and (base / path).resolve() == base / path}
    found: dict[PurePosixPath, Path] = {}
    outside, secret = [], []
    for path in paths:
        real = (base / path).resolve()
        if (base / path).exists() and not real.is_dir() and real not in own:
            outside.append(str(paths[path]))
        elif real.is_file():
            # A link is judged by its own name and by that of its target.
            looked = (PurePosixPath(below) / name for name in (path, PurePosixPath(real.relative_to(base).as_posix())))
            if any(map(named_like_one, looked)) and not named.has(real):
                secret.append(str(paths[path]))
            else:
                found[path] = real
    _check_sizes({str(paths[path]): real.stat().st_size for path, real in found.items()})
    files: dict[str, bytes] = {}
    for path, real in found.items():
        data = _content(real)
        if (what := content_like_one(data, suffix=real.suffix)) is not None and not named.has(real):
            secret.append(f"{paths[path]} ({what})")
        else:
            files[str(paths[path])] = data
    if secret:
        output.note(
            f"not mounted, because they look like secrets: {_few(secret)}; --mount-secret PATH mounts one of them"
        )
    if outside:
        output.note(f"not mounted, because they are links to files that are not mounted: {_few(outside)}")
    return files


def _content(path: Path) -> bytes:
    """Return the content of a regular file. Raises InputError."""
    try:
        return read_file(path, most=MAX_BYTES, source=str(path))
    except (OSError, DoorError) as error:
        why = str(error) if isinstance(error, DoorError) else f"{path} cannot be read: {error.strerror}"
        raise InputError(f"{why}; let git ignore it, or mount a part with --mount-dir") from error


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more

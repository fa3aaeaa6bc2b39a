"""Files that ``nvfp4 exec`` copies to the program's working folder."""

from __future__ import annotations

import fnmatch
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError

MAX_BYTES = 64 << 20
"""Limit on the size of all mounted files."""
_SECRET = (
    *(".env", ".env.*", ".netrc", "_netrc", ".pypirc", ".npmrc", ".modal.toml", ".popcorn.yaml", ".git-credentials"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa", "id_dsa", "id_ecdsa*", "id_ed25519*"),
    *("credentials*.json", "*.secret", "secrets.*", "*.token"),
)
_NEVER_INSIDE = (".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache")


def repository(start: Path) -> Path:
    """Return the root of the git repository around a folder, or the folder itself."""
    done = subprocess.run(
        ["git", "-C", str(start), "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False
    )
    return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else start.resolve()


def repository_files(root: Path) -> dict[str, bytes]:
    """Return the files of a repository that git tracks or does not ignore, by relative path; without git, all files."""
    done = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return folder_files(root, PurePosixPath())
    names = sorted({name for name in done.stdout.decode("utf-8", "surrogateescape").split("\0") if name})
    return _read((root / name, PurePosixPath(name)) for name in names)


def folder_files(local: Path, remote: PurePosixPath) -> dict[str, bytes]:
    """Return every file below a folder, by its path below ``remote``."""
    return _read((path, remote / path.relative_to(local).as_posix()) for path in _walk(local))


def mount(text: str) -> dict[str, bytes]:
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
    return folder_files(local, remote)


def check_size(files: dict[str, bytes]) -> None:
    """Raise InputError if the files are too large to be sent with every run."""
    total = sum(map(len, files.values()))
    if total > MAX_BYTES:
        largest = sorted(files, key=lambda name: -len(files[name]))[:3]
        named = ", ".join(f"{name} ({output.size_text(len(files[name]))})" for name in largest)
        raise InputError(
            f"the mounted files are {output.size_text(total)}, more than {output.size_text(MAX_BYTES)}; the largest "
            f"are {named}: let git ignore unneeded files, or mount a part with --mount-dir"
        )


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if path.name not in _NEVER_INSIDE:
                yield from _walk(path)
        else:
            yield path


def _read(entries: Iterable[tuple[Path, PurePosixPath]]) -> dict[str, bytes]:
    """Read files, and leave out and name those that look like secrets."""
    files: dict[str, bytes] = {}
    secret = []
    for path, name in entries:
        if any(fnmatch.fnmatch(path.name.lower(), pattern) for pattern in _SECRET):
            secret.append(str(name))
        elif path.is_file():
            files[str(name)] = path.read_bytes()
    if secret:
        shown = ", ".join(secret[:5]) + (f" and {len(secret) - 5} more" if len(secret) > 5 else "")
        output.note(f"not mounted, because they look like secrets: {shown}")
    return files

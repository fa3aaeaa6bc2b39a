"""Run git on a user's repository: no hooks, no variables of the caller's, no repository but the one that was found."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_nvfp4.loop.protocols import InfrastructureError
from pytest_nvfp4.text import clip, visible

_TIMEOUT_S: Final = 600.0
_MOST_LENDERS: Final = 100
_SETTINGS: Final = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",  # its shared part would be written into the user's repository
    "core.sparseCheckout": "false",
    "core.safecrlf": "false",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    # Milliseconds to wait for a lock that the user's own git holds; by default a tenth of a second, and one second.
    "core.filesRefLockTimeout": "10000",
    "core.packedRefsTimeout": "10000",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "i18n.commitEncoding": "UTF-8",
    "submodule.recurse": "false",
}
"""Settings of every call. Those that decide what a file's content is (filters, line ends) stay the user's."""
_IDENTITY: Final = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "nvfp4 loop"), ("EMAIL", "nvfp4-loop@localhost"))
}
_VARIABLES: Final = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_DEFAULT_REF_FORMAT": "files",
    "LC_ALL": "C",
    **_IDENTITY,
}


class GitError(InfrastructureError):
    """A git command failed.

    Attributes:
        status: Its exit status.
    """

    def __init__(self, message: str, status: int = 128) -> None:
        super().__init__(message)
        self.status = status


def run_git(
    *arguments: str | Path,
    cwd: Path,
    environ: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    accept: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[bytes]:
    """Run one git command.

    Args:
        arguments: Its arguments.
        cwd: Its working folder.
        environ: Variables on top of the scrubbed ones.
        stdin: Its standard input.
        accept: Exit statuses that are no errors.

    Raises:
        GitError: git is not installed, or failed.
        OSError: The disk is full.
    """
    git = shutil.which("git")
    if git is None:
        raise GitError("git is not installed; the loop keeps its incumbent in a git repository")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            [git, *settings, *arguments],
            cwd=cwd,
            env={**kept, **_VARIABLES, **(environ or {})},
            input=stdin,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git {arguments[0]} did not finish within {_TIMEOUT_S:.0f} s in {cwd}") from None
    except OSError as error:
        raise GitError(f"git {arguments[0]} could not be started in {cwd}: {error}") from None
    if done.returncode not in accept:
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number).encode() in done.stderr:
                raise OSError(number, f"git {arguments[0]} in {cwd}: {os.strerror(number)}")
        reason = clip(visible(done.stderr.decode("utf-8", "replace").strip(), multiline=True), 2000)
        raise GitError(f"git {arguments[0]} failed in {cwd} (status {done.returncode}): {reason}", done.returncode)
    return done


class Git:
    """Git on the repository around a folder.

    Args:
        start: A folder of the user's checkout.

    Attributes:
        top: Top folder of the user's checkout.
        objects: Folder of the objects that all its checkouts share.
        object_format: ``sha1`` or ``sha256``.

    Raises:
        GitError: There is no checkout, or git does not trust its owner (``safe.directory``).
    """

    def __init__(self, start: Path) -> None:
        # Without GIT_DIR, so that git examines who owns the repository; later calls name it.
        try:
            bare = self._asked(start, "--is-bare-repository")
        except GitError as error:
            raise GitError(f"{start} is in no git repository that can be used; {error}", error.status) from None
        if bare == "true":
            raise GitError(f"{start} is a bare repository; start the loop in a checkout of it (`git worktree add`)")
        self.top = Path(self._asked(start, "--show-toplevel"))
        self._folder = self._asked(start, "--absolute-git-dir")
        common = Path(self.top, self._asked(self.top, "--git-common-dir"))
        self.common = common.resolve()
        self.objects = self.common / "objects"
        self.object_format = self._asked(start, "--show-object-format")

    @staticmethod
    def _asked(start: Path, what: str) -> str:
        return os.fsdecode(run_git("rev-parse", what, cwd=start).stdout).removesuffix("\n")

    def run(
        self,
        *arguments: str | Path,
        tree: Path | None = None,
        index: Path | None = None,
        environ: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        accept: Sequence[int] = (0,),
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one git command on the repository.

        Args:
            arguments: Its arguments.
            tree: Work tree in place of the user's checkout.
            index: Index in place of the user's.
            environ: Further variables.
            stdin: Its standard input.
            accept: Exit statuses that are no errors.

        Raises:
            GitError: It failed.
        """
        places = {"GIT_DIR": self._folder, "GIT_WORK_TREE": str(tree or self.top)}
        if index is not None:
            places["GIT_INDEX_FILE"] = str(index)
        return run_git(
            *arguments, cwd=tree or self.top, environ={**places, **(environ or {})}, stdin=stdin, accept=accept
        )

    def lenders(self) -> list[Path]:
        """Return the folders of objects that a checkout of this repository reads, those that it borrows among them."""
        found: list[Path] = []
        pending = [self.objects]
        while pending and len(found) < _MOST_LENDERS:
            place = pending.pop()
            if place in found or not place.is_dir():
                continue
            found.append(place)
            borrowed = place / "info" / "alternates"
            if borrowed.is_file():
                lines = os.fsdecode(borrowed.read_bytes()).splitlines()
                pending += [(place / line).resolve() for line in lines if line and not line.startswith("#")]
        return found

    def text(self, *arguments: str | Path, stdin: bytes = b"", accept: Sequence[int] = (0,)) -> str:
        """Return the output of a git command on the repository, without the last line end. Raises GitError."""
        return os.fsdecode(self.run(*arguments, stdin=stdin, accept=accept).stdout).removesuffix("\n")

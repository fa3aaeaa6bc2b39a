"""The user's git repository: it owns the incumbent, keeps the candidates as commits, and is otherwise left alone.

The loop writes objects, the branch ``nvfp4-loop/NAME``, and references below ``refs/nvfp4-loop/NAME``. The user's
checkout, index, ``HEAD``, stash, other branches and settings are not touched.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from pytest_nvfp4.loop.repository import checkout
from pytest_nvfp4.loop.repository.evidence import commit_message, revert_message
from pytest_nvfp4.loop.repository.git import Git, GitError, run_git
from pytest_nvfp4.loop.schemas import Candidate, Verdict
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.text import clip, visible

_MOST_DIFF: Final = 400_000
_NO_COMMIT: Final = "0" * 40
_FILE_MODES: Final = ("100644", "100755")
_CACHES: Final = (
    *("__pycache__/", "*.py[co]", ".pytest_cache/", ".benchmarks/", ".hypothesis/", ".mypy_cache/", ".ruff_cache/"),
    *(".nvfp4/", ".cache/", ".ipynb_checkpoints/", ".DS_Store"),
)
"""What tools write beside sources; none of it can be part of a candidate."""


class RefusedPathError(Exception):
    """A candidate has a path that git refuses. The text is a sentence."""


class GitRepository:
    """The repository of a loop.

    Args:
        start: A folder of the user's checkout.
        name: Name of the loop.
        kernel: The kernel file, relative to the top of the checkout.
        state: The directory of state, below which checkouts of workers and judges are made.
        manual: Leave the checkouts of workers when cleaning: people work in them, also while no loop runs.

    Attributes:
        git: Git on the user's repository.
        branch: Name of the loop's branch.

    Raises:
        GitError: There is no checkout of a repository, or no branch can have this name.
    """

    def __init__(self, start: Path, *, name: str, kernel: str, state: StateFolder, manual: bool = False) -> None:
        self.git = Git(start)
        self.branch = f"nvfp4-loop/{name}"
        self.kernel = kernel
        self._state = state
        self._manual = manual
        self._own = f"refs/nvfp4-loop/{name}"
        self._ref = f"refs/heads/{self.branch}"
        self._used: set[Path] = set()
        self._lock = threading.Lock()
        if self.git.run("check-ref-format", self._ref, accept=(0, 1)).returncode:
            raise GitError(f"name = {name!r} cannot be part of a branch's name in git; choose letters, digits and '-'")

    @property
    def lock(self) -> Path:
        """File whose lock a process holds that moves the loop's branch."""
        return self.git.common / "nvfp4-loop" / f"{self.branch.removeprefix('nvfp4-loop/')}.lock"

    def incumbent(self) -> str:
        """Return the commit of the incumbent: that of the loop's branch, which is made at HEAD if it is missing.

        Raises:
            GitError: The branch is checked out, or is missing and cannot be made: HEAD has no commit, or the kernel
                file is not in it as it is in the checkout.
        """
        self._refuse_checked_out()
        found = self.commit_of(self._ref)
        if found is not None:
            return found
        head = self._baseline()
        self._move(head, _NO_COMMIT, "nvfp4 loop: baseline")
        return head

    def commit_of(self, name: str) -> str | None:
        """Return the commit that a reference or an id names; None if there is none."""
        done = self.git.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", accept=(0, 1, 128))
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def promote(self, candidate: Candidate, verdict: Verdict, *, expected: str, seconds: int) -> str:
        """Make a candidate the incumbent in one commit with the evidence, and return the commit.

        Its files are those that were judged: the tree of the candidate's own commit. A second call with the same
        arguments has no further effect and returns the same commit.

        Args:
            candidate: The candidate.
            verdict: The evidence.
            expected: Commit of the incumbent that it replaces.
            seconds: Date of the commit, in seconds since 1970.

        Raises:
            GitError: The branch is at another commit, or checked out.
        """
        if candidate.commit is None:
            raise GitError(f"candidate {candidate.number} has no commit, so it cannot be promoted")
        tree = self.tree_of(candidate.commit)
        if tree != candidate.tree:
            raise GitError(f"candidate {candidate.number}: commit {candidate.commit} has another tree than its record")
        return self._advance(
            tree,
            expected=expected,
            message=commit_message(candidate, verdict),
            seconds=seconds,
            why=f"candidate {candidate.number}",
        )

    def revert(self, to: str, *, expected: str, reason: str) -> str:
        """Give the incumbent the files of an earlier one again, in one commit, and return the commit.

        A second call with the same arguments has no further effect and returns the same commit.

        Args:
            to: Commit of the earlier incumbent.
            expected: Commit of the incumbent.
            reason: Why, for the message.

        Raises:
            GitError: The branch is at another commit, or checked out.
        """
        tree = self.git.text("rev-parse", "--verify", f"{to}^{{tree}}")
        return self._advance(
            tree,
            expected=expected,
            message=revert_message(to, expected, reason),
            seconds=self._date(expected),
            why=f"revert to {to}",
        )

    def _advance(self, tree: str, *, expected: str, message: str, seconds: int, why: str) -> str:
        """Move the loop's branch from a commit to a new child of it. Raises GitError."""
        commit = self._commit(tree, parent=expected, message=message, seconds=seconds)
        at = self.commit_of(self._ref)
        if at == commit:
            return commit
        if at != expected:
            found = f"is at {at}" if at is not None else "is gone"
            raise GitError(
                f"the branch {self.branch} {found}, and the loop left it at {expected}: another process has moved "
                f"it; move it back (git branch -f {self.branch} {expected}) or begin anew with --fresh-start"
            )
        self._refuse_checked_out()
        self._move(commit, expected, f"nvfp4 loop: {why}")
        return commit

    def add_candidate(self, number: int, *, parent: str, files: Mapping[str, bytes | None]) -> tuple[str, str]:
        """Store files as a commit on a parent, kept by a reference, and return the commit and its tree.

        The user's filters and line ends apply, as with ``git add``. Modes of existing files stay. The commit depends
        on the arguments and these settings only.

        Args:
            number: Number of the candidate.
            parent: Commit that they change.
            files: Content by path; None removes the file.

        Raises:
            RefusedPathError: git refuses a path, such as one with a part ``git~1``.
            GitError: git failed.
            OSError: A file cannot be written.
        """
        executable = self._executable(parent)
        with temporary_folder("candidate") as folder:
            index, stage = folder / "index", folder / "stage"
            stage.mkdir()
            for path, data in files.items():
                if data is not None:
                    place = stage / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(data)
                    place.chmod(0o755 if path in executable else 0o644)
            names = b"".join(os.fsencode(path) + b"\0" for path in files)
            self.git.run("read-tree", parent, tree=stage, index=index)
            # The work tree has no .gitattributes, so that those of the index apply, which are the parent's.
            self.git.run("update-index", "--add", "--remove", "-z", "--stdin", tree=stage, index=index, stdin=names)
            tree = self.git.run("write-tree", tree=stage, index=index).stdout.decode().strip()
        stored = self.files(tree)
        if refused := [path for path, data in files.items() if (path in stored) != (data is not None)]:
            raise RefusedPathError(f"{visible(refused[0])} has a name that git refuses")
        seconds = self._date(parent)
        commit = self._commit(tree, parent=parent, message=f"nvfp4-loop: candidate {number}\n", seconds=seconds)
        self.git.run("update-ref", f"{self._own}/candidates/{number:04d}", commit)
        return commit, tree

    @contextlib.contextmanager
    def worktree(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check a commit out into a folder of its own for the length of a ``with`` block. Raises GitError, OSError."""
        with self.in_use(folder):
            try:
                checkout.check_out(self.git, commit, folder)
                yield folder
            finally:
                checkout.remove(folder)

    @contextlib.contextmanager
    def in_use(self, folder: Path) -> Iterator[None]:
        """Keep `clean` from removing a folder for the length of a ``with`` block."""
        with self._lock:
            self._used.add(folder)
        try:
            yield
        finally:
            with self._lock:
                self._used.discard(folder)

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit. Raises GitError."""
        return self.git.text("rev-parse", "--verify", f"{commit}^{{tree}}")

    def files(self, commit: str) -> dict[str, str]:
        """Return the files of a commit or tree by path, with their modes as git writes them (``100644``)."""
        listed = os.fsdecode(self.git.run("ls-tree", "-r", "-z", "--full-tree", commit).stdout)
        entries = (line.partition("\t") for line in listed.split("\0") if line)
        return {path: facts.split(" ", 1)[0] for facts, _, path in entries}

    def read(self, commit: str, path: str) -> bytes:
        """Return the content of a file of a commit, as git stores it. Raises GitError."""
        return self.git.run("cat-file", "blob", f"{commit}:{path}").stdout

    def ignored(self, commit: str, paths: Collection[str]) -> set[str]:
        """Return those of some paths, which need not exist, that the ``.gitignore`` files of a commit ignore.

        Caches that Python, pytest and this package write are ignored in any case. Raises GitError and OSError.
        """
        rules = [path for path, mode in self.files(commit).items() if mode in _FILE_MODES and _is_rules(path)]
        with temporary_folder("ignored") as folder:
            own = {"GIT_DIR": str(folder / ".git"), "GIT_WORK_TREE": str(folder), "GIT_LITERAL_PATHSPECS": "0"}
            run_git("init", "--quiet", "--template=", cwd=folder, environ=own)
            for path in rules:
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(self.read(commit, path))
            caches = folder / ".git" / "caches"
            caches.write_text("\n".join(_CACHES), encoding="utf-8")
            # Names are pathspecs here, whose magic begins with a colon; one that begins with a point has none.
            names = b"".join(b"./" + os.fsencode(path) + b"\0" for path in paths)
            asked = ("-c", f"core.excludesFile={caches}", "check-ignore", "--no-index", "-z", "--stdin")
            done = run_git(*asked, cwd=folder, environ=own, stdin=names, accept=(0, 1))
        return {os.fsdecode(name.removeprefix(b"./")) for name in done.stdout.split(b"\0") if name}

    def diff(self, old: str, new: str) -> str:
        """Return the unified diff between two commits, of bounded length."""
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index")
        text = self.git.run("diff-tree", "-r", "-p", *options, old, new).stdout.decode("utf-8", "replace")
        return clip(text, _MOST_DIFF)

    def uncommitted(self) -> tuple[str, ...]:
        """Return the tracked files of the checkout that differ from HEAD; the loop does not see these changes."""
        options = ("--name-only", "-z", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
        listed = self.git.run("diff", *options, "HEAD").stdout
        return tuple(visible(name) for name in os.fsdecode(listed).split("\0") if name)

    def clean(self) -> None:
        """Remove the checkouts of workers and judges that no ``with`` block of this process uses."""
        work, others = self._state.work(0).parent, [self._state.judge(0).parent, self._state.review(0).parent]
        for group in others if self._manual else [work, *others]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for entry in list(group.iterdir()):
                    with self._lock:
                        used = any(place.is_relative_to(entry) for place in self._used)
                    if not used:
                        checkout.remove(entry)

    def refuse_candidates(self) -> None:
        """Raise GitError if the loop's name has candidates: another directory of state has made them."""
        if self.git.text("for-each-ref", "--count=1", f"{self._own}/"):
            raise GitError(
                f"{self._state.root} is new, and the branch {self.branch} belongs to a loop with another directory of "
                "state; go on with that one (--state), choose another name (name=NAME), or begin anew with "
                "--fresh-start, which moves the branch aside"
            )

    def retire(self) -> None:
        """Move the loop's branch and references aside, to ``refs/nvfp4-loop-old/NAME/N``, for a loop that begins anew.

        Raises:
            GitError: The branch is checked out, or git failed.
        """
        self._refuse_checked_out()
        listed = self.git.text("for-each-ref", "--format=%(objectname) %(refname)", self._ref, f"{self._own}/")
        if not listed:
            return
        base = self._own.replace("refs/nvfp4-loop/", "refs/nvfp4-loop-old/", 1)
        taken = self.git.text("for-each-ref", "--format=%(refname)", f"{base}/").splitlines()
        number = 1 + max((int(ref.removeprefix(f"{base}/").split("/")[0]) for ref in taken), default=0)
        commands = []
        for line in listed.splitlines():
            commit, ref = line.split(" ", 1)
            name = "incumbent" if ref == self._ref else ref.removeprefix(f"{self._own}/")
            commands += [f"create {base}/{number}/{name} {commit}", f"delete {ref} {commit}"]
        self.git.run("update-ref", "--stdin", stdin="\n".join([*commands, ""]).encode())

    def _baseline(self) -> str:
        """Return HEAD's commit, if its kernel file is that of the checkout. Raises GitError."""
        head = self.commit_of("HEAD")
        if head is None:
            raise GitError(f"{self.git.top} has no commit yet; commit the kernel, its tests and settings first")
        mode = self.files(head).get(self.kernel)
        if mode is None:
            raise GitError(
                f"kernel.file = {self.kernel!r} is not in the commit {head[:12]} of HEAD; name a file that git tracks, "
                f"relative to {self.git.top}, and commit it first (git add, git commit)"
            )
        if mode not in _FILE_MODES:
            what = "a link" if mode == "120000" else "no regular file"
            raise GitError(f"kernel.file = {self.kernel!r} is {what} in the commit {head[:12]}; name the file itself")
        options = ("--quiet", "--no-ext-diff", "--no-textconv")
        if self.git.run("diff", *options, "HEAD", "--", self.kernel, accept=(0, 1)).returncode:
            raise GitError(
                f"{self.git.top / self.kernel} differs from the commit {head[:12]} of HEAD, where the loop would "
                "begin; commit or stash its changes first"
            )
        return head

    def _executable(self, commit: str) -> frozenset[str]:
        return frozenset(path for path, mode in self.files(commit).items() if mode == "100755")

    def _commit(self, tree: str, *, parent: str, message: str, seconds: int) -> str:
        dates = {"GIT_AUTHOR_DATE": f"@{seconds} +0000", "GIT_COMMITTER_DATE": f"@{seconds} +0000"}
        done = self.git.run("commit-tree", tree, "-p", parent, "-F", "-", environ=dates, stdin=message.encode())
        return done.stdout.decode().strip()

    def _date(self, commit: str) -> int:
        """Return the date of a commit, in seconds since 1970."""
        return int(self.git.text("show", "--no-patch", "--format=%ct", commit))

    def _move(self, new: str, old: str, why: str) -> None:
        """Move the loop's branch, if it is at the old commit. Raises GitError."""
        old = old if old != _NO_COMMIT else "0" * len(new)
        self.git.run("update-ref", "-m", why, self._ref, new, old)

    def _refuse_checked_out(self) -> None:
        """Raise GitError if a checkout is on the loop's branch: moving it would make all its files look changed."""
        place = ""
        for line in self.git.text("worktree", "list", "--porcelain").splitlines():
            if line.startswith("worktree "):
                place = line.removeprefix("worktree ")
            elif line == f"branch {self._ref}":
                raise GitError(
                    f"the branch {self.branch} is checked out in {place}, and the loop moves it; "
                    f"leave it (git -C {place} switch --detach) and go on"
                )


def _is_rules(path: str) -> bool:
    return PurePosixPath(path).name == ".gitignore"

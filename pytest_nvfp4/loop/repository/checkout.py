"""A checkout of one commit as a repository of its own, which borrows the objects of the user's repository.

Unlike a linked worktree it shares neither references nor settings with the user's repository: a worker that commits,
tags or configures something changes its own checkout only, and needs no access to ``.git/config``, which may hold
secrets. ``git log``, ``git diff`` and ``git status`` work in it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from pytest_nvfp4.loop.repository.git import Git, GitError, run_git
from pytest_nvfp4.temporary import remove_tree

_COPIED: Final = ("autocrlf", "eol", "filemode", "symlinks", "ignorecase", "precomposeunicode")
"""Settings of ``core`` without which an unchanged file would look changed."""


def check_out(git: Git, commit: str, folder: Path) -> None:
    """Make a folder that holds the files of a commit, and nothing else; what was there is removed.

    Files have the content that the user's own checkout would have: filters and line ends are those of his settings and
    of the commit's ``.gitattributes``. Folders of submodules are empty.

    Raises:
        GitError: git failed.
        OSError: The folder cannot be made.
    """
    remove(folder)
    folder.mkdir(parents=True)
    own = {"GIT_DIR": str(folder / ".git"), "GIT_WORK_TREE": str(folder)}
    made = ("init", "--quiet", "--template=", f"--object-format={git.object_format}")
    run_git(*made, cwd=folder, environ=own)
    lender = os.fsencode(git.objects)
    if b"\n" in lender:
        raise GitError(f"the path of the repository {git.top} has a line end, so that its objects cannot be shared")
    (folder / ".git" / "objects" / "info" / "alternates").write_bytes(lender + b"\n")
    shallow = git.common / "shallow"
    if shallow.is_file():
        shutil.copyfile(shallow, folder / ".git" / "shallow")
    set_by_user = git.text("config", "--get-regexp", f"^core[.]({'|'.join(_COPIED)})$", accept=(0, 1))
    for line in set_by_user.splitlines():
        name, _, value = line.partition(" ")
        run_git("config", "--local", name, value or "true", cwd=folder, environ=own)
    run_git("update-ref", "--no-deref", "HEAD", commit, cwd=folder, environ=own)
    index = folder / ".git" / "index"
    git.run("read-tree", commit, tree=folder, index=index)
    git.run("checkout-index", "--all", "--force", "--quiet", "--index", tree=folder, index=index)


def remove(folder: Path) -> None:
    """Remove a checkout, whatever a worker has made of it; a link in its place is removed, and not followed."""
    if folder.is_symlink():
        folder.unlink()
    else:
        remove_tree(folder)

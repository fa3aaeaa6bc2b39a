"""Temporary folders end with their owner, or with the next run; no other folder is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.temporary import (
    TemporaryFolder,
    folder_in,
    name_beside,
    remove_abandoned,
    remove_unfinished,
    temporary_folder,
)

OWNER = """
import sys, time
from pathlib import Path
from pytest_nvfp4.temporary import TemporaryFolder
folder = TemporaryFolder("test", parent=Path(sys.argv[1])).path
(folder / "deep" / "er").mkdir(parents=True)
(folder / "deep" / "er" / "file").write_text("x")
(folder / "deep").chmod(0o500)
print(folder, flush=True)
time.sleep(600)
"""


def test_a_folder_ends_with_its_block(tmp_path: Path) -> None:
    def interrupted() -> None:
        with temporary_folder("test", parent=tmp_path) as folder:
            (folder / "file").write_text("x")
            assert folder.parent == tmp_path
            assert folder.stat().st_mode & 0o077 == 0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    owners = [
        subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        dead, alive = (Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout is not None)
        foreign = [tmp_path / name for name in ("nvfp4-tmp-test-1", "nvfp4-tmp-link.lock", "other.lock")]
        foreign[0].mkdir()  # without a lock file nobody says whose it is
        foreign[1].symlink_to(foreign[0])
        foreign[2].touch()
        os.mkfifo(tmp_path / "nvfp4-tmp-pipe.lock")
        owners[0].kill()
        owners[0].wait()
        own = TemporaryFolder("test", parent=tmp_path)
        assert not dead.exists()
        assert not dead.with_name(f"{dead.name}.lock").exists()
        assert (alive / "deep" / "er" / "file").exists()
        remove_abandoned(tmp_path)
        assert own.path.is_dir(), "the folders of this process are its own"
        own.remove()
        own.remove()
        assert not own.path.exists()
        assert all(path.is_symlink() or path.exists() for path in foreign)
    finally:
        for owner in owners:
            owner.kill()
            owner.wait()
            assert owner.stdout is not None
            owner.stdout.close()
    remove_abandoned(tmp_path)
    assert not alive.exists()


def test_a_folder_that_cannot_be_searched_is_no_error(tmp_path: Path) -> None:
    remove_abandoned(tmp_path / "gone")
    with pytest.raises(OSError, match="gone"):
        TemporaryFolder("test", parent=tmp_path / "gone")


def test_what_was_not_renamed_in_time_is_removed_files_and_folders(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom pytest_nvfp4.temporary import name_beside\n"
        "for _ in range(2):\n    print(name_beside(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x")]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    names = [Path(line) for line in ended.stdout.splitlines()]
    names[0].write_text("x")
    (names[1] / "deep").mkdir(parents=True)
    own = name_beside(tmp_path / "x")
    own.touch()
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [own]


@pytest.mark.slow
def test_folders_deeper_than_any_recursion_are_removed(tmp_path: Path) -> None:
    """Removed one by one, because pytest's own removal of ``tmp_path`` recurses."""
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nos.symlink('/etc', 'link')\n"
    with folder_in(tmp_path, "job-") as folder:
        subprocess.run([sys.executable, "-c", deep], cwd=folder, check=True)
        (folder / "d").chmod(0o500)
    assert not folder.exists()
    assert not list(tmp_path.iterdir())

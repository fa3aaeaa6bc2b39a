"""A cache gives back what was stored under this key in this cache, or nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.toolchain.sealed_files import (
    MOST_BYTES,
    SealedFiles,
    refused_lines,
    sealed_folder,
)

CONTENT = b'{"status": "passed"}' * 3


def stored(root: Path, content: bytes = CONTENT) -> tuple[SealedFiles, Path]:
    """An entry in a new cache folder."""
    files = SealedFiles(root)
    path = files.folder / "verdicts" / "aa" / "aa11.json"
    files.write(path, content, cache="verdicts", key="aa11")
    return files, path


def read(files: SealedFiles, path: Path) -> bytes | None:
    """What the cache gives back for that entry."""
    return files.read(path, cache="verdicts", key="aa11")


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    files, path = stored(tmp_path)
    assert read(files, path) == CONTENT
    assert read(SealedFiles(tmp_path), path) == CONTENT, "another process has the same key"
    assert read(files, path.with_name("aa12.json")) is None
    assert not files.refused


@given(st.data())
def test_no_damaged_entry_is_accepted(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files, path = stored(Path(folder))
        whole = path.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = data.draw(
            st.sampled_from(
                [
                    whole[:at],
                    whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :],
                    whole[:at] + data.draw(st.binary(min_size=1, max_size=9)) + whole[at:],
                    whole[at + 1 :],
                ]
            )
        )
        path.write_bytes(damaged)
        assert read(files, path) == (CONTENT if damaged == whole else None)
        assert len(files.refused) == (damaged != whole)


def _copied(files: SealedFiles, path: Path) -> None:
    other = path.with_name("bb22.json")
    files.write(other, b"another kernel's", cache="verdicts", key="bb22")
    other.replace(path)


def _other_cache(files: SealedFiles, path: Path) -> None:
    files.write(path, CONTENT, cache="simulations", key="aa11")


def _boundary(files: SealedFiles, path: Path) -> None:
    files.write(path, CONTENT, cache="verdictsaa", key="11")  # the same bytes, divided in another way


def _other_folder(_: SealedFiles, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(stored(Path(folder))[1], path)


def _link(_: SealedFiles, path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


def _hard_link(_: SealedFiles, path: Path) -> None:
    os.link(path, path.with_name("another"))


def _pipe(_: SealedFiles, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(_: SealedFiles, path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def _huge(_: SealedFiles, path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(3 << 30)


def _older_key(files: SealedFiles, _: Path) -> None:
    (files.folder / "key").unlink()


def _key_for_all(files: SealedFiles, _: Path) -> None:
    (files.folder / "key").chmod(0o644)


def _short_key(files: SealedFiles, _: Path) -> None:
    (files.folder / "key").write_bytes(b"short")


def _linked_key(files: SealedFiles, _: Path) -> None:
    key = files.folder / "key"
    key.rename(files.folder / "other")
    key.symlink_to("other")


FORGED: dict[Callable[[SealedFiles, Path], None], str] = {
    _copied: "has a seal that does not fit",
    _other_cache: "has a seal that does not fit",
    _boundary: "has a seal that does not fit",
    _other_folder: "has a seal that does not fit",
    _link: "is a link, and links are not followed",
    _pipe: "is a pipe, not a file",
    _folder: "is a folder, not a file",
    _hard_link: "is a hard link",
    _huge: f"has an unexpected size of {3 << 30} bytes",
    _older_key: "has a seal that does not fit",
    _key_for_all: "has a seal that does not fit",
    _short_key: "has a seal that does not fit",
    _linked_key: "has a seal that does not fit",
}


@pytest.mark.parametrize("forge", FORGED)
def test_a_forged_entry_is_refused_removed_and_made_anew(
    tmp_path: Path, forge: Callable[[SealedFiles, Path], None]
) -> None:
    files, path = stored(tmp_path)
    forge(files, path)
    files = SealedFiles(tmp_path)
    assert read(files, path) is None
    (refused,) = files.refused
    assert (refused.cache, refused.file) == ("verdicts", str(path))
    assert FORGED[forge] in refused.reason
    assert not path.is_symlink()
    assert not path.exists()
    files.write(path, CONTENT, cache="verdicts", key="aa11")
    assert read(files, path) == CONTENT
    key = (files.folder / "key").lstat()
    assert stat.S_ISREG(key.st_mode)
    assert stat.S_IMODE(key.st_mode) == 0o600


def test_a_folder_in_the_way_is_replaced(tmp_path: Path) -> None:
    files, path = stored(tmp_path)
    _folder(files, path)
    files.write(path, CONTENT, cache="verdicts", key="aa11")
    assert read(files, path) == CONTENT


def test_processes_that_begin_at_once_have_one_key(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom pytest_nvfp4.toolchain.sealed_files import SealedFiles\n"
        "files = SealedFiles(Path(sys.argv[1]))\n"
        "files.write(files.folder / sys.argv[2], b'x', cache='c', key=sys.argv[2])\n"
    )
    names = [str(index) for index in range(4)]
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in names]
    assert [process.wait() for process in started] == [0] * 4
    files = SealedFiles(tmp_path)
    assert [files.read(files.folder / name, cache="c", key=name) for name in names] == [b"x"] * 4
    assert not list(sealed_folder(tmp_path).glob("*.tmp"))


def test_refused_entries_are_one_line_a_cause(tmp_path: Path) -> None:
    files, path = stored(tmp_path)
    for name in ("one", "two", "three"):
        path.with_name(name).write_text("forged")
        assert read(files, path.with_name(name)) is None
    (line,) = refused_lines(files.refused)
    assert line == (
        f"cache 'verdicts': {path.with_name('one')} has a seal that does not fit its content, key and cache "
        "(and so 2 more entries); removed, and computed again"
    )


def test_a_large_entry_is_refused_before_it_is_read(tmp_path: Path) -> None:
    files, path = stored(tmp_path)
    with path.open("r+b") as file:
        file.truncate(MOST_BYTES + 1)
    assert read(files, path) is None


def test_a_folder_that_another_process_makes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sealed_folder(tmp_path)
    is_dir = Path.is_dir

    def made_afterwards(path: Path) -> bool:
        found = is_dir(path)
        if path == folder and not found:
            folder.mkdir(mode=0o700, parents=True)
        return found

    monkeypatch.setattr(Path, "is_dir", made_afterwards)
    files, path = stored(tmp_path)
    assert read(files, path) == CONTENT

"""Files that an answer names, and files of the user's disk."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import purge, read_below, read_file, read_text


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (lambda path: path.symlink_to("/etc/passwd"), "link"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "link"),
    "loop": (lambda path: path.symlink_to(path), "link"),
    "pipe": (os.mkfifo, "a pipe"),
    "folder": (Path.mkdir, "a folder"),
    "socket": (_socket, "socket|cannot be read"),
    "hard link": (lambda path: path.hardlink_to(path.parent / "other"), "hard link"),
    "large": (_sparse, "3221225472 bytes"),
    "short": (lambda path: path.write_bytes(b"x"), "has 1 bytes, and 3 are expected"),
    "missing": (lambda _: None, "did not come"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_bytes(b"abc")
    return tmp_path


def test_a_file_below_the_folder_is_read(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c.bin").write_bytes(b"abc")
    assert read_below(folder, "a/b/c.bin", source="C", size=3) == b"abc"
    assert read_file(folder / "a" / "b" / "c.bin", source="C", most=3) == b"abc"
    assert read_text(folder / "a" / "b" / "c.bin", source="C", most=3) == "abc"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_refused(folder: Path, kind: str) -> None:
    make, words = KINDS[kind]
    make(folder / "file")
    with pytest.raises(DoorError, match=words):
        read_below(folder, "file", source="C", size=3)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "a\\b", ".", "a/" * 40 + "b", "x" * 5000]
)
def test_names_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(DoorError):
        read_below(folder, name, source="C", size=3)


def test_a_linked_folder_is_not_entered(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "real" / "f").write_bytes(b"abc")
    (folder / "linked").symlink_to("real")
    assert read_below(folder, "real/f", source="C", size=3) == b"abc"
    with pytest.raises(DoorError):
        read_below(folder, "linked/f", source="C", size=3)


def test_no_descriptor_is_left_open(folder: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for name in ("other", "nowhere", "other/x"):
        for size in (3, 4):
            try:
                read_below(folder, name, source="C", size=size)
            except DoorError:
                continue
    assert len(list(descriptors.iterdir())) == before


def test_a_users_file_may_be_a_link_but_no_pipe_and_not_large(folder: Path) -> None:
    (folder / "link").symlink_to("other")
    assert read_file(folder / "link", source="the file", most=3) == b"abc"
    os.mkfifo(folder / "pipe")
    for path, words in ((folder / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (folder, "a folder")):
        with pytest.raises(DoorError, match=words):
            read_file(path, source="the file", most=3)
    with pytest.raises(DoorError, match="at most 2"):
        read_file(folder / "other", source="the file", most=2)
    with pytest.raises(DoorError, match="no file can have"):
        read_file(Path("a\0b"), source="the file", most=2)
    with pytest.raises(FileNotFoundError):
        read_file(folder / "nowhere", source="the file", most=2)
    (folder / "other").write_bytes(b"\xff")
    with pytest.raises(DoorError, match="UTF-8"):
        read_text(folder / "other", source="the file", most=2)


def test_a_growing_file_is_refused() -> None:
    """Files of /proc have size 0 and content."""
    with pytest.raises(DoorError, match="grew"):
        read_file(Path("/proc/self/status"), source="the file", most=10)


def test_a_folder_is_purged_of_all_but_plain_files(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "a.ptx").write_bytes(bytes(10))
    _sparse(folder / "b.ptx")
    (folder / "c.ptx").symlink_to("/etc/passwd")
    os.mkfifo(folder / "d.ptx")
    problems = purge(folder, most=100)
    assert sorted(path.name for path in folder.iterdir()) == ["a.ptx", "other", "sub"]
    assert len(problems) == 3
    assert purge(folder, most=100) == []

"""A file is written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.writing import write_whole


def test_it_replaces_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("old, and longer than the new")
    write_whole(file, "new\n")
    assert file.read_bytes() == b"new\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "x.txt"
    file.write_text("old")
    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupt_leaves_what_was_there_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "x.txt"
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_is_removed_and_what_another_writes_now_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = (
        f".x.txt.{ended.pid}-0123abcd.tmp",
        f".y.txt.{ended.pid}-0123abcd.tmp",
        f".x.txt.{os.getppid()}-0123abcd.tmp",
    )
    stale, other, busy = (tmp_path / name for name in names)
    foreign = tmp_path / ".x.txt.1.tmp"
    for path in (stale, other, busy, foreign):
        path.touch()
    write_whole(tmp_path / "x.txt", "new")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "x.txt", busy, foreign])


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "x.txt", tmp_path / "link.txt"
    file.touch()
    link.symlink_to(file)
    write_whole(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "x.txt", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "x.txt").stat().st_mode & 0o777 == 0o640


def test_text_that_is_not_unicode_is_written_as_escapes(tmp_path: Path) -> None:
    write_whole(tmp_path / "x.txt", "a\udc80b")
    assert (tmp_path / "x.txt").read_text() == "a\\udc80b"

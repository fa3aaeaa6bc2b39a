"""What of this package decides what is kept, as a hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.remote import cache as remote_cache
from pytest_nvfp4.toolchain.code_hash import ASKING, PACKAGE, code_hash, parts_without

from .imports import imported_rooms

PARTS = ("one.py", "folder")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for name in ("one.py", "folder/two.py", "folder/deep/three.py", "other.py", "folder/notes.txt"):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("changed", ["one.py", "folder/two.py", "folder/deep/three.py"])
def test_a_change_to_a_part_is_another_hash(package: Path, changed: str) -> None:
    before = code_hash(PARTS, package=package)
    assert code_hash(PARTS, package=package) == before
    (package / changed).write_text("changed")
    assert code_hash(PARTS, package=package) != before


def test_a_file_under_another_name_is_another_hash(package: Path) -> None:
    before = code_hash(PARTS, package=package)
    (package / "folder" / "two.py").rename(package / "folder" / "four.py")
    assert code_hash(PARTS, package=package) != before


@pytest.mark.parametrize("changed", ["other.py", "folder/notes.txt"])
def test_what_is_no_part_does_not_matter(package: Path, changed: str) -> None:
    before = code_hash(PARTS, package=package)
    (package / changed).write_text("changed")
    assert code_hash(PARTS, package=package) == before


def test_a_part_that_is_not_there_is_no_empty_one(package: Path) -> None:
    with pytest.raises(OSError, match=r"gone\.py"):
        code_hash((*PARTS, "gone.py"), package=package)


def test_the_parts_of_a_remotes_answer_are_there() -> None:
    assert len(code_hash(remote_cache._PARTS)) == 64


def test_every_room_counts_that_is_not_left_out() -> None:
    parts = parts_without(*ASKING)
    assert len(code_hash(parts)) == 64
    assert {"sim", "device", "numerics", "toolchain", "finding.py", "schedules.py"} <= set(parts)
    assert all((PACKAGE / name).exists() for name in ASKING)


@pytest.mark.slow
def test_rooms_that_are_left_out_take_no_part_in_a_verdict() -> None:
    """A module that a worker or the judge imports is in the hash, also where it is imported in a function."""
    starts = ("device.worker.__main__", "device.verify", "device.sim", "device.far_end", "device.fitted_problem")
    named = imported_rooms([f"pytest_nvfp4.{start}" for start in starts], package=PACKAGE)
    assert "sim" in named
    assert not named & {name.removesuffix(".py") for name in ASKING}
    traced = imported_rooms(
        [f"pytest_nvfp4.toolchain.{name}" for name in ("worker.__main__", "tracer")], package=PACKAGE
    )
    assert "toolchain" in traced
    assert not traced & {"sim", "device", "schedules", *ASKING}


def test_what_draws_the_inputs_of_a_benchmark_is_part_of_a_remotes_answer() -> None:
    """An answer is judged by inputs that are drawn again: an earlier version's draws may be others."""
    assert "device/rotation.py" in remote_cache._PARTS

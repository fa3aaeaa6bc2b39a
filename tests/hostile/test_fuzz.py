"""10,000 damaged documents: each is read or refused by its documented error, in bounded time and memory."""

from __future__ import annotations

import random
import resource
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

from .doors import Door, cache_doors, file_doors, worker_doors
from .mutations import mutated

_MAKERS = {"worker": worker_doors, "cache": cache_doors, "file": file_doors}
_NAMES = {
    "worker": (
        *("events of verify", "events of a benchmark", "events of a simulation", "events of a compile"),
        *("answers of remotes", "compressed answers", "batches", "jobs", "reports of the fork server"),
        *("headers of requests", "reports of popcorn", "documents"),
    ),
    "cache": ("verdicts", "simulations", "traces", "compiled modules"),
    "file": ("settings", "sheets", "listings", "baselines"),
}
_CASE_S = 60
"""Seconds for one case: far more than any needs, on a machine that is busy."""
_GROWTH_BYTES = 1 << 30
_FAST = 30
"""Cases of each door that run by default."""


@contextmanager
def deadline(what: str) -> Iterator[None]:
    """Fail if the block takes too long."""

    def late(_number: int, _frame: FrameType | None) -> NoReturn:
        raise AssertionError(f"{what} did not end within {_CASE_S} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(_CASE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def read(door: Door, data: bytes, what: str) -> object:
    """Read a document; None if it was refused as documented."""
    with deadline(what):
        try:
            return door.read(data)
        except door.refuses:
            return None
        except Exception as error:
            raise AssertionError(f"{what}: {data[:500]!r} raises {type(error).__name__}") from error


def fuzz(door: Door, name: str, cases: range) -> None:
    """Read damaged documents. A failure names its case, which draws the same document again."""
    for number in cases:
        draw = random.Random(zlib.crc32(f"{name} {number}".encode()))
        valid = draw.choice(door.valid)
        data = mutated(valid, draw)
        found = read(door, data, f"case {number} of {name!r}")
        if not door.trusts:
            assert found is None or data in door.valid, f"case {number} of {name!r} was taken: {data[:500]!r}"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in _NAMES.items() for name in names])
@pytest.mark.parametrize("part", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_a_damaged_document_is_read_or_refused(tmp_path: Path, kind: str, name: str, part: str) -> None:
    door = _MAKERS[kind](tmp_path)[name]
    for valid in door.valid:
        assert read(door, valid, f"the valid document of {name!r}") is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzz(door, name, range(_FAST) if part == "few" else range(_FAST, door.cases))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < _GROWTH_BYTES, f"reading took {grown >> 20} MiB"


def test_there_are_as_many_cases_as_promised(tmp_path: Path) -> None:
    doors = [door for kind, make in _MAKERS.items() for door in make(tmp_path / kind_folder(tmp_path, kind)).values()]
    assert sum(door.cases for door in doors) >= 10_000
    assert {kind: tuple(make(tmp_path / kind_folder(tmp_path, kind + "2"))) for kind, make in _MAKERS.items()} == _NAMES


def kind_folder(root: Path, kind: str) -> str:
    """Make a folder."""
    (root / kind).mkdir()
    return kind

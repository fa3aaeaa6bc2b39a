"""What the host has read once is given to it again, with the addresses and the random state of the later call."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_nvfp4.machine import host_reads
from pytest_nvfp4.machine.host_reads import HostReads
from pytest_nvfp4.machine.wire import Answer, Message

READ = Message("read")


def recorded(*answers: Answer) -> HostReads:
    reads = HostReads()
    assert [reads.answered(READ, answer) for answer in answers] == [*answers]
    reads.again()
    return reads


def result(value: Any, *blobs: bytes, generator: int | None = None) -> Answer:
    return {"result": value, "changed": [], "generator": generator}, list(blobs)


def host(size: int, blob: int = 0) -> dict[str, Any]:
    return {"host": ["uint8", [size], [1], blob]}


def test_numbers_and_bytes_are_those_of_the_first_call_in_their_order() -> None:
    reads = recorded(result(7), result({"float": "0x1p+0"}), result(host(2), b"ab"))
    assert reads.answered(READ, result(8)) == result(7)
    assert reads.answered(READ, result({"float": "0x1p+1"})) == result({"float": "0x1p+0"})
    assert reads.answered(READ, result(host(2), b"xy")) == result(host(2), b"ab")
    assert reads.answered(READ, result(9)) == result(9), "the first call has read no more"


def test_places_on_the_device_and_the_state_of_a_generator_are_those_of_the_later_call() -> None:
    new = {"new": [4096, "float32", [2], [1], 0, 8]}
    other = {"new": [8192, "float32", [2], [1], 0, 8]}
    reads = recorded(result([new, 3], b"ab", b"old state", generator=1))
    assert reads.answered(READ, result([other, 4], b"xy", b"new state", generator=1)) == result(
        [other, 3], b"ab", b"new state", generator=1
    )


@pytest.mark.parametrize(
    "other",
    [result(1.5), result([1]), result(host(3), b"xyz"), result(host(2), b"xy", b"z"), result({"new": [1]})],
)
def test_what_is_unlike_gets_its_own_answer_and_so_does_all_behind_it(other: Answer) -> None:
    reads = recorded(result(host(2), b"ab"), result(7))
    assert reads.answered(READ, other) == other
    assert reads.answered(READ, result(8)) == result(8)


def test_another_request_gets_its_own_answer() -> None:
    assert recorded(result(7)).answered(Message("copy"), result(8)) == result(8)


def test_each_later_call_begins_with_the_first_answer() -> None:
    reads = recorded(result(7), result(8))
    for _ in range(3):
        reads.again()
        assert reads.answered(READ, result(1)) == result(7)


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reads, "_MOST_BYTES", 3)
    reads = recorded(result(host(2), b"ab"), result(host(2), b"cd"), result(7))
    assert reads.answered(READ, result(host(2), b"xy")) == result(host(2), b"ab")
    assert reads.answered(READ, result(host(2), b"xy")) == result(host(2), b"xy")

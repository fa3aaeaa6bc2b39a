"""The parent's side of the debugger's dialogue: answers in pieces, commands, and answers that are refused."""

from __future__ import annotations

import json

import pytest

from pytest_nvfp4.device.dialogue import Answer, dialogue
from pytest_nvfp4.isolation.door import DoorError


def event(**fields: object) -> bytes:
    return json.dumps({"event": "debug", "text": "here", "data": {}, "asks": True, **fields}).encode() + b"\n"


def test_each_answer_is_shown_once_and_its_command_is_sent() -> None:
    seen: list[str] = []

    def answer(made: Answer) -> str:
        seen.append(made.text)
        return f"print {len(seen)}\nquit"

    with dialogue(answer) as talk:
        data = (
            b'{"event": "stage", "name": "x"}\n' + event(text="one") + event(text="two", asks=False) + event(text="3")
        )
        for at in range(0, len(data), 7):
            talk.received(data[at : at + 7])
        talk.close()
        with talk.stdin.open("rb") as commands:
            assert commands.read() == b"print 1 quit\nprint 3 quit\n"
    assert seen == ["one", "two", "3"]


def test_the_end_of_commands_closes_the_input() -> None:
    with dialogue(lambda _: None) as talk:
        talk.received(event())
        talk.received(event())
        with talk.stdin.open("rb") as commands:
            assert commands.read() == b""


@pytest.mark.parametrize(
    "wrong",
    [event(text=1), event(more=1), event(data=[]), event()[:-2] + b"\n", event(data={"a": float("nan")})],
)
def test_an_answer_that_does_not_fit_is_refused(wrong: bytes) -> None:
    with dialogue(lambda _: "never") as talk, pytest.raises(DoorError, match="the debugger's answer"):
        talk.received(wrong)

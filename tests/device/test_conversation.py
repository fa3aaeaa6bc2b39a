"""Recorded host code: played again it says the same, and nothing to a device or a caller that is another."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.worker.conversation import ConversationLog, Player, PlayError
from pytest_nvfp4.machine.wire import Channel, HungUpError, Message
from pytest_nvfp4.toolchain.trace_archive import SOURCE

ROOM = (1 << 44, 1 << 45)
THERE, HERE = "/there/source", "/here/source"
PTX, ELF = f'.file 1 "{THERE}/k.py"'.encode(), b"\x7fELF" + THERE.encode()


def values() -> dict[str, Any]:
    log = ConversationLog(ROOM, sources=THERE)
    log.command("load", {"sources": THERE}, ())
    log.answer(Message("returned", {"prepares": False}))
    log.command("call", {"data": [1]}, ())
    request = Message("module", {"line": [f"{THERE}/k.py", 3]}, [PTX, ELF])
    log.request(request, ("ok", {"module": 0}, ()))
    log.answer(Message("returned", {"returned": []}))
    log.command("end", {}, ())
    log.answer(Message("returned", {"messages": []}))
    return dict(json.loads(json.dumps(log.to_json())))


def played(
    tmp_path: Path, recorded: dict[str, Any], *, room: tuple[int, int] = ROOM, data: int = 1, answer: int = 0
) -> tuple[list[Message], list[Message]]:
    """What the player answers and requests."""
    (tmp_path / "recording").write_text(json.dumps(recorded))
    ours, theirs = socket.socketpair()
    requests: list[Message] = []

    def device() -> None:
        channel = Channel(theirs)
        with contextlib.suppress(HungUpError):  # nothing is requested of it
            requests.append(channel.receive())
            channel.send("ok", {"module": answer})

    thread = threading.Thread(target=device, daemon=True)
    thread.start()
    with ours:
        player = Player(tmp_path / "recording", Channel(ours), room, sources=HERE)
        commands = [Message("load", {"sources": HERE}), Message("call", {"data": [data]}), Message("end")]
        answers = [player.play(command) for command in commands]
        thread.join(10)
    return answers, requests


def test_it_says_the_same_again(tmp_path: Path) -> None:
    recorded = values()
    assert THERE not in json.dumps(recorded["steps"])
    assert SOURCE in json.dumps(recorded["steps"])
    answers, (request,) = played(tmp_path, recorded)
    assert [answer.fields for answer in answers] == [{"prepares": False}, {"returned": []}, {"messages": []}]
    assert request.kind == "module"
    assert request.fields["line"] == [f"{HERE}/k.py", 3]
    assert [bytes(blob) for blob in request.blobs] == [PTX.replace(b"/there", b"/here"), ELF]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": 2}, "was recorded on another problem"),
        ({"answer": 1}, "answers a request \\(module\\) otherwise"),
        ({"room": (1 << 40, 1 << 45)}, "cannot lie at the address"),
    ],
)
def test_to_another_it_says_nothing(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(PlayError, match=said):
        played(tmp_path, values(), **changed)


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.update(format="x"),
        lambda values: values.update(steps={}),
        lambda values: values.update(blobs={}),
        lambda values: values["blobs"].update(dict.fromkeys(values["blobs"], "AAAA")),
        lambda values: values["steps"].pop(0),
        lambda values: values["steps"].pop(),
        lambda values: values["steps"][3].pop(),
        lambda values: values["steps"][3].__setitem__(2, []),
        lambda values: values["steps"].insert(0, 7),
    ],
)
def test_what_is_damaged_is_refused(tmp_path: Path, damage: Callable[[dict[str, Any]], None]) -> None:
    recorded = values()
    damage(recorded)
    with pytest.raises(PlayError):
        played(tmp_path, recorded)

"""The debugger's dialogue as the parent has it: answers come as events of the worker, commands go to its input."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.isolation.door.models import validated

EVENT: Final = "debug"
MOST_CHARACTERS: Final = 1 << 20
"""Characters of an answer's text."""
_START: Final = b'{"event": "debug", '
_MOST_LINE: Final = 16 << 20


class Answer(BaseModel):
    """What the debugger answers.

    Attributes:
        text: The answer for people; it may hold text of the kernel's files.
        data: The same for programs.
        asks: Whether the next command is wanted.
    """

    model_config = STRICT
    text: Annotated[str, Field(max_length=MOST_CHARACTERS)]
    data: dict[str, Any]
    asks: bool


class Dialogue:
    """A dialogue with the debugger of one worker.

    Its events come from the worker, to which the kernel's process has no pipe; the worker's last event confirms them.

    Args:
        answer: Called with each answer; returns the next command if it asks for one, None for the end of commands.

    Attributes:
        stdin: The standard input of the worker.
    """

    def __init__(self, answer: Callable[[Answer], str | None], commands: int, stdin: Path) -> None:
        self.stdin = stdin
        self._answer = answer
        self._commands: int | None = commands
        self._line = b""

    def received(self, chunk: bytes) -> None:
        """Read a part of the worker's events, and answer its questions. Raises DoorError for one that is refused."""
        *whole, self._line = (self._line + chunk).split(b"\n")
        if len(self._line) > _MOST_LINE:
            raise DoorError("the debugger's answer", f"has more than {_MOST_LINE} bytes")
        for line in whole:
            if line.startswith(_START):
                source = "the debugger's answer"
                fields = read_json(line, source=source)
                fields.pop("event")
                self._reply(validated(Answer, fields, source=source))

    def _reply(self, made: Answer) -> None:
        command = self._answer(made)
        if not made.asks or self._commands is None:
            return
        if command is None:
            self.close()
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, command.replace("\n", " ").encode() + b"\n")

    def close(self) -> None:
        """End the commands: the launch continues without stops."""
        if self._commands is not None:
            os.close(self._commands)
            self._commands = None


@contextlib.contextmanager
def dialogue(answer: Callable[[Answer], str | None]) -> Iterator[Dialogue]:
    """Yield a dialogue for one worker; see `Dialogue`."""
    read, write = os.pipe()
    try:
        made = Dialogue(answer, write, Path(f"/proc/self/fd/{read}"))
        try:
            yield made
        finally:
            made.close()
    finally:
        os.close(read)

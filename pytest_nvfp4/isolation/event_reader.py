"""The events of a worker, as its parent reads them: lines that are checked one by one (``event_sender``)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Name, Seconds
from pytest_nvfp4.isolation.door.json_values import read_lines
from pytest_nvfp4.isolation.seal.kept import Kept

SOURCE: Final = "the worker's event"


class Begin(BaseModel):
    """The first event, with the random word."""

    model_config = STRICT
    word: Name


class Stage(BaseModel):
    """What the worker does from now on; ``seconds`` since its start."""

    model_config = STRICT
    name: Name
    seconds: Seconds = 0.0


class End(BaseModel):
    """The last event of the worker, with the hash of all lines before it."""

    model_config = STRICT
    ok: bool = True
    sha256: Name = ""


FRAME: Final[dict[str, type[BaseModel]]] = {"begin": Begin, "stage": Stage, "end": End, "kept": Kept}
"""What the events of every worker carry; ``kept`` is that of its keeper, and follows the end."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        name: What it is.
        fields: What it carries.
        source: Description for messages, with its number.
        before: Hash of all lines before it.
    """

    name: str
    fields: dict[str, Any] = field(hash=False)
    source: str
    before: str

    @property
    def forged(self) -> bool:
        """Whether it is an end without the hash of all lines before it: another process wrote to the pipe."""
        return self.name == "end" and self.fields.get("sha256") != self.before


def whole_lines(data: bytes) -> bytes:
    """Return the lines of a result pipe without the part of a line that a killed process leaves."""
    return data[: data.rfind(b"\n") + 1]


def read_events(data: bytes, *, most: int) -> Iterator[Event]:
    """Yield the events of whole lines. Raises DoorError for one that is refused."""
    digest = hashlib.sha256()
    for number, (line, event) in enumerate(read_lines(data, source=SOURCE, most=most), start=1):
        source = f"{SOURCE} number {number}"
        if not isinstance(event, dict) or not isinstance(name := event.pop("event", None), str):
            raise DoorError(source, "is no object with the name of an event")
        yield Event(name, event, source, digest.hexdigest())
        digest.update(line)

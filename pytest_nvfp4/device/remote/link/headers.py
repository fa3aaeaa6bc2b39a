"""Headers of the messages that the agent sends, as the local side accepts them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.device.remote.base import Place
from pytest_nvfp4.isolation.door.fields import Index, Name, Sentence


class _Header(BaseModel):
    """Fields of a later version are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Ready(_Header):
    """The agent serves: its machine, its GPU, the number of GPUs, the modules that it lacks, and its Python."""

    place: Place
    gpu: Name
    gpus: Index
    missing: Annotated[tuple[Name, ...], Field(max_length=100)]
    executable: Name


class Failed(_Header):
    """The agent did not start (``link.bootstrap``)."""

    failed: Name = ""
    problem: Sentence = "no reason was given"
    path: Name = ""
    module: Name = ""
    python: Name = "Python"


class State(_Header):
    """A request waits for a GPU or runs."""

    state: Literal["waiting", "running"]


class OutputOf(_Header):
    """The payload is output of a program."""

    stream: Literal["stdout", "stderr"]


class Exit(_Header):
    """A program has ended."""

    status: Annotated[int, Field(ge=-256, le=4096)]
    timed_out: bool


class Failure(_Header):
    """A request has failed."""

    error: Name = "remote"
    problem: Sentence = "no reason was given"
    remedy: Sentence = ""

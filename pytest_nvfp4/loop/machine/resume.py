"""The configuration that a loop began with, and what a later run may change of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.isolation.door.files import read_text
from pytest_nvfp4.isolation.door.models import fault
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.configuration.config_file import toml_value
from pytest_nvfp4.writing import write_whole

_MOST_BYTES = 1 << 20
_FREE = (
    "budget.", "limits.", "notify.", "memory.", "worker.", "reviewer.", "judge.jobs", "judge.containers",
    "judge.timeout_s", "target.threshold", "target.confirmations",
)  # fmt: skip
"""Keys that decide who proposes, how long, and how much is spent; what was judged means the same with other values."""
_FIXED = ("worker.candidates",)


class ChangedError(Exception):
    """The configuration differs from that of the start in a way that changes what the history means."""


def write_config(path: Path, config: LoopConfig) -> None:
    """Write a configuration as TOML. Raises OSError."""
    lines = ["# The configuration as it was resolved at the start of the loop."]
    values = config.model_dump(mode="json")
    lines += [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for name, section in values.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {toml_value(value)}" for key, value in section.items() if value is not None]
    write_whole(path, "\n".join(lines) + "\n")


def read_config(path: Path) -> LoopConfig | None:
    """Return the configuration of the start; None if there is none. Raises DoorError and OSError."""
    try:
        text = read_text(path, source=str(path), most=_MOST_BYTES)
    except FileNotFoundError:
        return None
    try:
        return LoopConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DoorError(str(path), f"is not TOML: {error}") from None
    except ValidationError as error:
        raise DoorError(str(path), fault(error)) from None


def compare(old: LoopConfig, new: LoopConfig) -> None:
    """Compare the configurations of the start and of a later run. Raises ChangedError."""
    before, after = dict(_flat(old.model_dump(mode="json"))), dict(_flat(new.model_dump(mode="json")))
    changed = [key for key in after if before.get(key) != after[key]]
    # People may take over from a command and the other way round; a dry run has nothing in common with either.
    both = {old.mode, new.mode} <= {"command", "manual"}
    bad = [
        f"{key} ({toml_value(before.get(key))} -> {toml_value(after[key])})"
        for key in changed
        if key in _FIXED or not (key.startswith(_FREE) or (key == "mode" and both))
    ]
    if bad:
        raise ChangedError(
            f"the loop began with another configuration: {', '.join(bad)}; set it back, or begin anew with "
            "--fresh-start, which keeps the old records beside the new ones"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value

"""Writing of accepted findings into a ``pyproject.toml``: comments and format of the rest stay as they are."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from pytest_nvfp4.settings.accepted import AcceptedFinding
from pytest_nvfp4.settings.error import SettingsError
from pytest_nvfp4.settings.section import parse

_HEADER: Final = "[[tool.pytest_nvfp4.accepted]]"
_TABLE: Final = re.compile(r"^[ \t]*\[\[?[^\n]*$", re.MULTILINE)
_OWN: Final = re.compile(r"\s*\[\[\s*tool\s*\.\s*pytest_nvfp4\s*\.\s*accepted\s*\]\]\s*(#.*)?")


def with_accepted(text: str, new: Sequence[AcceptedFinding], *, file: Path) -> str:
    """Return the text of a settings file with further accepted findings at its end.

    An entry that is about the same finding gives way to the new one.

    Raises:
        SettingsError: The file is not valid, or it holds its tables in a form that cannot be extended.
    """
    old = _read(text, file)
    replaced = {number for number, entry in enumerate(old) if any(_same(entry, each) for each in new)}
    expected = [entry for number, entry in enumerate(old) if number not in replaced]
    kept = _without(text, replaced)
    blocks = "\n".join(map(_block, new))
    whole = f"{kept.rstrip()}\n\n{blocks}" if kept.strip() else blocks
    try:
        agrees = _read(whole, file) == [*expected, *new] and _others(whole) == _others(text)
    except (SettingsError, tomllib.TOMLDecodeError):
        agrees = False
    if not agrees:
        raise SettingsError(
            f"{file}: its accepted findings cannot be changed here, as they are no {_HEADER} tables of one line a key; "
            f"write them so, or add this yourself:\n{blocks}"
        )
    return whole


def _read(text: str, file: Path) -> list[AcceptedFinding]:
    try:
        return list(parse(tomllib.loads(text), file=file).accepted)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{file}: cannot be read as TOML: {error}") from error


def _others(text: str) -> object:
    """Return what the file says besides accepted findings."""
    data = tomllib.loads(text)
    tool = dict(data.get("tool", {}))
    section = {key: value for key, value in tool.pop("pytest_nvfp4", {}).items() if key != "accepted"}
    return {**data, "tool": {**tool, **({"pytest_nvfp4": section} if section else {})}}


def _same(old: AcceptedFinding, new: AcceptedFinding) -> bool:
    return (old.check, old.kernel, old.kind, old.text) == (new.check, new.kernel, new.kind, new.text)


def _without(text: str, numbers: set[int]) -> str:
    """Return the text without the tables of accepted findings of some numbers, in their order in the file."""
    starts = [match.start() for match in _TABLE.finditer(text)]
    own = [start for start in starts if _OWN.fullmatch(text[start:].partition("\n")[0])]
    for number in sorted(numbers, reverse=True):
        if number < len(own):
            end = next((start for start in starts if start > own[number]), len(text))
            text = text[: own[number]] + text[end:]
    return text


def _block(entry: AcceptedFinding) -> str:
    lines = [_HEADER]
    for name in ("check", "kernel", "kind", "text", "others", "places", "reason", "date", "expires"):
        value = getattr(entry, name)
        if value != next(field.default for field in fields(entry) if field.name == name):
            lines.append(f"{name} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    # A string of JSON is one of TOML, but for DEL, which TOML does not allow as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")

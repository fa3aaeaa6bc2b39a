"""Write a configuration as a commented TOML file; its comments are the descriptions of the fields."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pytest_nvfp4.loop.configuration.config import LoopConfig

_WIDTH = 100
_HEAD = """\
# The configuration of an optimisation loop: `nvfp4 loop run` reads it, `nvfp4 guide loop` explains it, and
# `nvfp4 loop check FILE --kind config` checks it. Paths are relative to the root of the repository.
# A line such as "#name = value" is the default; without the "#" it is a setting.
"""


def config_text(config: LoopConfig, *, notes: Mapping[str, str] | None = None) -> str:
    """Return a configuration as the text of a file, in which a value that is the default is a comment.

    Args:
        config: The configuration.
        notes: Further comments, by ``section.key``.
    """
    return "\n".join([_HEAD, *_lines(config, "", notes or {})]).rstrip("\n") + "\n"


def toml_value(value: object) -> str:
    """Return a text, number, truth value or list of texts as TOML, which writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines(model: BaseModel, above: str, notes: Mapping[str, str]) -> Iterator[str]:
    values = model.model_dump(mode="json")
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            what = (type(value).__doc__ or "").partition("``: ")[2].strip()
            yield from (f"[{name}]", *_comment(what[:1].upper() + what[1:].replace("``", "`")), "")
            yield from _lines(value, f"{name}.", notes)
        else:
            yield from _comment(_description(field))
            yield from _comment(notes.get(f"{above}{name}", ""))
            yield _setting(name, values[name], default=_default(field))
            yield ""


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _description(field: FieldInfo) -> str:
    """Return what a field means, with the values that it can have."""
    text = field.description or ""
    if get_origin(field.annotation) is Literal:
        allowed = [str(each) for each in get_args(field.annotation)]
        text += f" ({' or '.join(allowed)})" if len(allowed) > 1 and allowed[0] not in text else ""
    return text[:1].upper() + text[1:] + "."


def _setting(name: str, value: object, *, default: object) -> str:
    """Return the line of a key; ``value`` and ``default`` are those of JSON."""
    if value is None:
        return f"#{name} is not set"
    return f"{'#' if value == default else ''}{name} = {toml_value(value)}"


def _default(field: FieldInfo) -> object:
    """Return the default of a field as a value of JSON; a value that no field has if it is required."""
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return ...
    return list(default) if isinstance(default, tuple) else default

"""The axes of a contract of the user's own, from which problems may be drawn that it does not list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.problem import Axis

Axes: TypeAlias = Mapping[str, Sequence[Axis]]
"""The values of each axis, the simplest first; a range of integers is one of Python."""
_MOST = 1 << 48
Integer = Annotated[int, Field(ge=-_MOST, le=_MOST, strict=True)]


class Range(BaseModel):
    """The integers from ``least`` to ``most``, ``step`` apart."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    least: Integer
    most: Integer
    step: Annotated[int, Field(ge=1, le=_MOST)]


def values_of(values: Range | tuple[Axis, ...]) -> Sequence[Axis]:
    """Return the values of an axis."""
    return range(values.least, values.most + 1, values.step) if isinstance(values, Range) else values


def text_of(axes: Mapping[str, Axis]) -> str:
    """Return the name of a problem that is drawn, such as ``rows=3,columns=64``."""
    return ",".join(f"{name}={value}" for name, value in axes.items())


def read_axes(text: str, axes: Axes) -> dict[str, Axis] | None:
    """Return the axes that ``text_of`` wrote; None if the text does not give each axis one of its values."""
    given = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if list(given) != list(axes) or len(given) != text.count(",") + 1:
        return None
    found: dict[str, Axis] = {}
    for name, values in axes.items():
        value: Axis | None
        if isinstance(values, range):
            digits = given[name].removeprefix("-")
            known = digits.isascii() and digits.isdigit() and len(digits) < 20 and int(given[name]) in values
            value = int(given[name]) if known else None
        else:
            value = next((each for each in values if str(each) == given[name]), None)
        if value is None:
            return None
        found[name] = value
    return found

"""Pydantic models of values from outside, with one sentence for what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.isolation.door.json_values import DOCUMENT, Bounds, read_json
from pytest_nvfp4.isolation.door.versions import other_version

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
_MOST_VALUE_CHARACTERS = 60
_VERSIONS = (("version",), ("schema_version",), ("format",))
"""Places of the version of a format."""


def validated(model: type[M] | TypeAdapter[T], value: object, *, source: str) -> M | T:
    """Return the model of some JSON values.

    Raises:
        DoorError: A field is missing, unknown, of another type or out of its range; the first such field is named.
    """
    try:
        if isinstance(model, TypeAdapter):
            return model.validate_python(value)
        return model.model_validate(value)
    except ValidationError as error:
        raise DoorError(source, fault(error)) from None
    except (RecursionError, OverflowError) as error:
        raise DoorError(source, f"cannot be validated: {type(error).__name__}") from None


def parsed(model: type[M], data: bytes | str, *, source: str, bounds: Bounds = DOCUMENT) -> M:
    """Return the model of a JSON document. Raises DoorError as `read_json` and `validated`."""
    made = validated(model, read_json(data, source=source, bounds=bounds), source=source)
    assert isinstance(made, model)
    return made


def fault(error: ValidationError) -> str:
    """Return the first fault of a validation as a predicate, with the name of the field."""
    first, *others = faults(error)
    return first + (f" (and {len(others)} more)" if others else "")


def relevant(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors of a validation. If the version of the format is another one, it is the only error."""
    found = error.errors(include_url=False, include_context=False)
    return [each for each in found if each["type"] == "literal_error" and each["loc"] in _VERSIONS] or found


def faults(error: ValidationError) -> Iterator[str]:
    """Yield each fault of a validation (`relevant`) as a predicate, with the name of the field."""
    for each in relevant(error):
        if each["type"] == "literal_error" and each["loc"] in _VERSIONS:
            yield other_version(each["input"], int(each["msg"].rpartition(" ")[2]))
            continue
        place = ".".join(str(part)[:_MOST_VALUE_CHARACTERS] for part in each["loc"])
        message = each["msg"].removeprefix("Value error, ")
        if each["type"] == "missing":
            yield f"lacks {place}"
        elif each["type"] == "extra_forbidden":
            yield f"has the unknown field {place}"
        elif not place:
            yield f"is not valid: {message}"
        else:
            yield f"has {place} = {_short(each['input'])}: {message}"


def _short(value: Any) -> str:
    """Return a value as text; only the beginning of one that is long, without building the rest."""
    if isinstance(value, str | bytes):
        text = repr(value[:_MOST_VALUE_CHARACTERS])
        return text if len(value) <= _MOST_VALUE_CHARACTERS else f"{text} ..."
    if value is None or isinstance(value, bool | int | float):
        return repr(value)[:_MOST_VALUE_CHARACTERS]
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} values"
    return type(value).__name__

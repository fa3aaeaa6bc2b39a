"""Read a configuration: a TOML file, with overrides ``section.key=value``."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_text
from pytest_nvfp4.isolation.door.models import faults, relevant
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.problem import ProblemError
from pytest_nvfp4.settings import SettingsError, find_root
from pytest_nvfp4.settings import load as load_settings

CONFIG_NAME = "nvfp4-loop.toml"
"""File of the configuration at the root of the repository."""
NEEDS_CONTRACT = (
    "has an entry in its settings; the loop verifies results and models times of kernels with custom_kernel(data) only"
)
_MOST_BYTES = 1 << 20
_MOST_LINES = 2000
"""Lines of a file in which the line of a key is looked for."""


def load_config(root: Path, *, file: Path | None = None, overrides: Sequence[str] = ()) -> LoopConfig:
    """Return the configuration of a loop.

    Args:
        root: Root of the repository, which the paths in the configuration are relative to.
        file: The file; by default ``nvfp4-loop.toml`` at the root.
        overrides: ``section.key=value`` each; the value is one of TOML, or a bare word.

    Raises:
        ConfigError: The file cannot be read, or a value cannot be used.
    """
    path = root / CONFIG_NAME if file is None else file
    try:
        text = read_text(path, source=str(path), most=_MOST_BYTES)
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file; `nvfp4 loop init KERNEL` writes one"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    except DoorError as error:
        raise ConfigError([str(error)]) from None
    config = parse_config(text, source=str(path), overrides=overrides)
    _check_kernel(config, root, source=str(path))
    return _absolute(config, root)


def parse_config(text: str, *, source: str, overrides: Sequence[str] = ()) -> LoopConfig:
    """Return the configuration in the text of a TOML file, without a look at any other file.

    Args:
        text: The text.
        source: Name of the file, for errors.
        overrides: See `load_config`.

    Raises:
        ConfigError: It is not TOML, or a value cannot be used; all such values are named.
    """
    data = _toml(text, source)
    given: dict[tuple[str, ...], str] = {}
    for override in overrides:
        place, value = _override(override)
        table = data
        for part in place[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError([f"{source}: {part} is not a table"])
        table[place[-1]] = value
        given[place] = override
    try:
        # By way of JSON, because only there a strict validation accepts a list for a tuple.
        return LoopConfig.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(list(_problems(error, text, source, given))) from None


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError([f"{source}: is not TOML: {reason}"]) from None


def _override(text: str) -> tuple[tuple[str, ...], Any]:
    """Return place and value of an override. Raises ConfigError."""
    name, equals, value = text.partition("=")
    place = tuple(name.strip().split("."))
    if not equals:
        raise ConfigError([f"{text!r} is no override; write it as section.key=value"])
    if not value.strip():
        raise ConfigError([f"{text!r} has no value; leave it out for the default"])
    field = _field(place)
    if field is None:
        raise ConfigError([f"{text!r}: the key {name.strip()!r} is unknown{_near(name.strip(), list(_places()))}"])
    return place, _value(value.strip(), field)


def _value(text: str, field: FieldInfo) -> Any:
    """Return the value of an override: that of TOML if it suits the field, else the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if set(parsed) == {"value"} else text
    except (ValueError, RecursionError):
        value = text
    if not isinstance(value, str) and _is_text(field.annotation):
        return text
    if isinstance(value, str) and get_origin(field.annotation) is tuple:
        return [value]
    return value


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return all(isinstance(each, str) for each in get_args(annotation))
    return annotation is str


def _field(place: Sequence[str]) -> FieldInfo | None:
    """Return the field of a key; None for an unknown one and for a whole table."""
    model: type[BaseModel] = LoopConfig
    for at, part in enumerate(place):
        field = model.model_fields.get(part)
        table = None if field is None else _table(field)
        if at == len(place) - 1:
            return field if table is None else None
        if table is None:
            return None
        model = table
    return None


def _table(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _places(model: type[BaseModel] = LoopConfig, above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        table = _table(field)
        if table is None:
            yield above + name
        else:
            yield from _places(table, f"{name}.")


def _near(name: str, known: Sequence[str]) -> str:
    """Return a hint at the known key that an unknown one may mean."""
    ends = {each.rpartition(".")[2]: each for each in known}
    near = difflib.get_close_matches(name, known, n=1) or [
        ends[each] for each in difflib.get_close_matches(name.rpartition(".")[2], list(ends), n=1)
    ]
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _problems(error: ValidationError, text: str, source: str, given: Mapping[tuple[str, ...], str]) -> Iterator[str]:
    """Yield each fault of a configuration, with the override or the line that it comes from."""
    for each, fault in zip(relevant(error), faults(error), strict=True):
        place = tuple(part for part in each["loc"] if isinstance(part, str))
        override = next((given[place[:end]] for end in range(len(place), 0, -1) if place[:end] in given), None)
        if override is not None:
            yield f"{override!r}: {fault}"
            continue
        hint = ""
        if each["type"] == "extra_forbidden":
            table = LoopConfig if len(place) == 1 else _table(LoopConfig.model_fields[place[0]])
            hint = _near(place[-1], [] if table is None else list(table.model_fields))
        line = _line(text, place if each["type"] != "missing" else place[:-1])
        yield f"{source}{'' if line is None else f':{line}'}: {fault}{hint}"


def _line(text: str, place: Sequence[str]) -> int | None:
    """Return the line of a key: the first one after which the text, cut there, has the key, back to the last cut."""
    lines = text.splitlines(keepends=True)
    start = 1
    for end in range(1, min(len(lines), _MOST_LINES) + 1 if place else 0):
        try:
            value: Any = tomllib.loads("".join(lines[:end]))
        except ValueError:
            continue  # within a value of several lines
        for part in place:
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return start
        start = end + 1
    return None


def _check_kernel(config: LoopConfig, root: Path, *, source: str) -> None:
    """Raise ConfigError unless the kernel, its configuration and the problems exist."""
    name, own = config.kernel.file, config.kernel.config
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.as_posix() != name:
        raise ConfigError([f"{source}: kernel.file = {name!r} must be a path relative to {root}, such as my/kernel.py"])
    if not (root / path).is_file():
        raise ConfigError([f"{source}: kernel.file = {name!r}: there is no such file below {root}"])
    try:
        settings = load_settings(find_root(root / path))
        configurations = {each.name: each for each in settings.for_kernel(root / path)}
    except SettingsError as error:
        raise ConfigError([str(error)]) from None
    if own not in configurations and (own or len(configurations) > 1):
        known = ", ".join(map(repr, configurations))
        raise ConfigError([f"{source}: kernel.config = {own!r} is none of the kernel; its configurations are {known}"])
    if any(each.entry is not None for each in configurations.values() if own in ("", each.name)):
        raise ConfigError([f"{source}: kernel.file = {name!r} {NEEDS_CONTRACT}"])
    for key in ("problems", "verify"):
        try:
            settings.resolve_problems(getattr(config.kernel, key))
        except ProblemError as error:
            raise ConfigError([f"{source}: kernel.{key}: {error}"]) from None


def _absolute(config: LoopConfig, root: Path) -> LoopConfig:
    """Return a configuration whose paths of templates and of the sandbox are absolute."""

    def full(text: str) -> str:
        return str(root / Path(text).expanduser()) if text else ""

    sections = {}
    for name in ("worker", "reviewer"):
        section = getattr(config, name)
        paths = {key: tuple(map(full, getattr(section, key))) for key in ("readable", "writable")}
        sections[name] = section.model_copy(update={"template": full(section.template), **paths})
    return config.model_copy(update=sections)

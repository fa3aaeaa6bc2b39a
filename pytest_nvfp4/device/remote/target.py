"""Targets of remotes: the text after the colon of ``NAME:TARGET``, with settings as in the query of a URL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.text import clip

_MOST_USD = 10_000


def split_target(remote: str, text: str, settings: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split ``ADDRESS?NAME=VALUE&...`` into the address and the settings.

    Args:
        remote: Name of the remote, for the error.
        text: The target.
        settings: Names of the supported settings.

    Raises:
        RemoteError: A setting is not supported.
    """
    address, _, query = text.partition("?")
    pairs = (part.partition("=") for part in query.split("&") if part)
    values = {name: unquote(value) for name, _, value in pairs}
    if unknown := sorted(set(values) - set(settings)):
        problem = f"--nvfp4-remote={remote}:{text}: unknown setting {unknown[0]!r}"
        raise RemoteError("setup", problem, f"{remote} supports {', '.join(sorted(settings))}")
    return address, values


def parse_price(values: Mapping[str, str]) -> float | None:
    """Return the setting ``price`` in US dollars an hour; None if it is not set. Raises RemoteError."""
    if (text := values.get("price")) is None:
        return None
    try:
        usd = float(text)
    except ValueError:
        usd = math.nan
    if not 0 <= usd <= _MOST_USD:
        problem = f"price={clip(text, 40)!r} is not a number of US dollars an hour"
        raise RemoteError("setup", problem, f"write 0 to {_MOST_USD}")
    return usd

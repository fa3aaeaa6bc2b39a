"""Whether the sandbox around processes that run a kernel's code is used, required or off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Mode = Literal["auto", "require", "off"]
MODES: Final[tuple[Mode, ...]] = ("auto", "require", "off")
MODE_VARIABLE: Final = "NVFP4_SANDBOX"
"""Environment variable with the mode of all sandboxes that this process gives to workers."""


def mode_from(environ: Mapping[str, str]) -> Mode:
    """Return the mode that an environment asks for. Raises ValueError."""
    value = environ.get(MODE_VARIABLE) or "auto"
    for mode in MODES:
        if mode == value:
            return mode
    raise ValueError(f"{MODE_VARIABLE}={value} is none of {', '.join(MODES)}")

"""Whether the sandbox around processes that run a kernel's code is used, required or off."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal

Mode = Literal["auto", "require", "off"]
MODES: Final[tuple[Mode, ...]] = ("auto", "require", "off")
MODE_VARIABLE: Final = "NVFP4_SANDBOX"
"""Environment variable with the mode of all sandboxes that this process gives to workers."""
INSIDE_VARIABLE: Final = "NVFP4_INSIDE_SANDBOX"
"""Environment variable that is ``1`` in a sandbox; for messages only, because a kernel can change it."""


def inside() -> bool:
    """Return whether this process stands in a sandbox: one that enters it notes so in its environment."""
    return os.environ.get(INSIDE_VARIABLE) == "1"


def mode_from(environ: Mapping[str, str]) -> Mode:
    """Return the mode that an environment asks for. Raises ValueError."""
    value = environ.get(MODE_VARIABLE) or "auto"
    for mode in MODES:
        if mode == value:
            return mode
    raise ValueError(f"{MODE_VARIABLE}={value} is none of {', '.join(MODES)}")

"""The token by which a process and its children are found, where others read it: ``/proc/PID/environ``.

That file shows the memory where the kernel put the environment when the process's program was started, whatever the
process made of its environment since. A child of a nursery has that memory from the nursery, and writes its own token
over the placeholder there; the pages are its own from then on. What it forks has the token by the same memory, what
it starts has it by its environment. Source: proc(5), ``/proc/pid/environ`` and ``env_start`` in ``/proc/pid/stat``.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE

PLACEHOLDER: Final = "-" * 32
"""What a nursery has for a token: as long as one, and none."""

_ENV_START = 50 - 3
"""Fields of ``stat`` are counted from 1, and the third follows the name of the program."""


def overwrite(token: str) -> None:
    """Put ``token`` in the place of the placeholder.

    Raises:
        RuntimeError: it does not show: a process that cannot be found again must not run.
    """
    shown = _variable(PLACEHOLDER)
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    block = ctypes.string_at(start, end - start) if start else b""
    place = (b"\0" + block).find(b"\0" + shown + b"\0")
    if place >= 0 and len(token) == len(PLACEHOLDER):
        ctypes.memmove(start + place, _variable(token), len(shown))
    if _variable(token) not in Path("/proc/self/environ").read_bytes().split(b"\0"):
        raise RuntimeError("the token of this process does not show in its environment")


def _variable(token: str) -> bytes:
    return f"{TOKEN_VARIABLE}={token}".encode()

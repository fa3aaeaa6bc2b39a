"""Privileges of a process: none after this, and none by executing a program (capabilities(7))."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Final

from pytest_nvfp4.isolation.wall import libc

_PR_CAPBSET_DROP: Final = 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3: Final = 0x20080522


def drop() -> None:
    """Drop all capabilities, also those that executing a program as root would give."""
    machine = libc.machine()
    if machine is None:
        return
    with contextlib.suppress(OSError):  # EINVAL ends the list; EPERM: this process has none to drop
        for capability in range(64):
            libc.prctl(_PR_CAPBSET_DROP, capability)
    with contextlib.suppress(OSError):
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0), 8)
    libc.call(libc.NR_CAPSET[machine], header, ctypes.create_string_buffer(24), name="capset")

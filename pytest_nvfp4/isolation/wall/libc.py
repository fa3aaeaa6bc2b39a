"""System calls that Python has no function for, on 64-bit Linux for x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from functools import cache
from typing import Final, Literal

Machine = Literal["x86_64", "aarch64"]

NR_LANDLOCK_CREATE_RULESET: Final = 444
NR_LANDLOCK_ADD_RULE: Final = 445
NR_LANDLOCK_RESTRICT_SELF: Final = 446
_NR_MOUNT_SETATTR: Final = 442
"""The same numbers on all architectures."""
NR_SECCOMP: Final[dict[Machine, int]] = {"x86_64": 317, "aarch64": 277}
NR_CAPSET: Final[dict[Machine, int]] = {"x86_64": 126, "aarch64": 91}


@cache
def machine() -> Machine | None:
    """Return the architecture of this 64-bit process on Linux; None for any other, which has no wall."""
    name = os.uname().machine if sys.platform == "linux" and sys.maxsize > 1 << 32 else ""
    return "x86_64" if name == "x86_64" else "aarch64" if name in ("aarch64", "arm64") else None


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def call(number: int, *arguments: int | ctypes.c_void_p | object, name: str) -> int:
    """Make a system call by its number. Raises OSError with ``name``."""
    function = _libc().syscall
    function.restype = ctypes.c_long
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _checked(int(function(ctypes.c_long(number), *wide)), name)


def prctl(option: int, *arguments: int | object) -> int:
    """Call prctl(2) with up to four arguments. Raises OSError."""
    wide = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    wide += [ctypes.c_ulong(0)] * (4 - len(wide))
    return _checked(int(_libc().prctl(ctypes.c_int(option), *wide)), "prctl")


def unshare(flags: int) -> None:
    """Move this process into new namespaces (unshare(2)). Raises OSError."""
    _checked(_libc().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Call mount(2). Raises OSError."""
    result = _libc().mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(result, f"mount {target}")


def mount_setattr(target: str, *, recursive: bool, read_only: bool) -> None:
    """Make a mount read-only or not (mount_setattr(2)). Raises OSError."""
    at_fdcwd, at_recursive, rdonly = -100, 0x8000, 1
    attributes = struct.pack("=4Q", rdonly * read_only, rdonly * (not read_only), 0, 0)
    held = ctypes.create_string_buffer(attributes, len(attributes))
    path = ctypes.c_char_p(target.encode())
    call(_NR_MOUNT_SETATTR, at_fdcwd, path, at_recursive * recursive, held, len(attributes), name="mount_setattr")


def forbid_new_privileges() -> None:
    """Set ``no_new_privs``: no program that this process executes gains privileges. Raises OSError."""
    pr_set_no_new_privs = 38
    prctl(pr_set_no_new_privs, 1)

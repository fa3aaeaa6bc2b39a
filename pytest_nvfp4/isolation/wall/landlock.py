"""Landlock: what a process may do with files, and which processes it may signal (landlock(7)).

Rules name files and folders that stay accessible; everything else of a handled kind is refused with EACCES. A domain
also forbids to trace any process outside of it, and so to open its ``/proc`` entries ``environ``, ``mem``, ``maps`` and
``fd``. The rights grow with the version ("ABI") of the running kernel, which is asked first; calls of an older one are
made without what it does not know. Landlock does not restrict stat(2), nor connections to sockets that have a path.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from pytest_nvfp4.isolation.wall import libc

_CREATE_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_RULE_NET_PORT: Final = 2

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
_MAKE_CHAR: Final = 1 << 6
_MAKE_BLOCK: Final = 1 << 11
_BITS_OF_ABI: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights by version: 2 adds ``refer``, 3 ``truncate``, 5 ``ioctl_dev``."""
_NETWORK_ABI: Final = 4
_SCOPE_ABI: Final = 6
_BIND_AND_CONNECT_TCP: Final = 3
_SIGNALS: Final = 2
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 1 | _SIGNALS
SIGNALS_ABI: Final = 6
"""First version that confines signals."""

READ: Final = READ_FILE | READ_DIR | EXECUTE
LIST: Final = READ_DIR
DEVICE: Final = READ_FILE | WRITE_FILE | IOCTL_DEV
WRITE: Final = (1 << 16) - 1 & ~(_MAKE_CHAR | _MAKE_BLOCK | IOCTL_DEV)
"""All rights but those to make device files and to control devices."""
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV


def abi() -> int:
    """Return the version of Landlock of the running kernel; 0 if it has none or does not use it."""
    if libc.machine() is None:
        return 0
    try:
        return libc.call(libc.NR_LANDLOCK_CREATE_RULESET, 0, 0, _CREATE_VERSION, name="landlock_create_ruleset")
    except OSError:
        return 0


def restrict(rules: Iterable[tuple[str | int, int]], *, network: bool, ports: Sequence[int] = ()) -> None:
    """Restrict this thread and all that it starts, for ever.

    Args:
        rules: Files and folders, by path or descriptor, with the rights on them and below them. One that does not
            exist or cannot be opened is left out, which refuses it.
        network: Whether TCP ports may be bound and connected to.
        ports: Those that may nevertheless. With any, sockets of other processes with an abstract address may be
            connected to.

    Raises:
        OSError: The running kernel has no Landlock, or this process may gain privileges (``no_new_privs``).
    """
    version = abi()
    handled = (1 << _BITS_OF_ABI[min(max(version, 1), max(_BITS_OF_ABI))]) - 1
    tcp = 0 if network or version < _NETWORK_ABI else _BIND_AND_CONNECT_TCP
    scopes = _SIGNALS if ports else _ABSTRACT_SOCKETS_AND_SIGNALS
    scoped = scopes if version >= _SCOPE_ABI else 0
    size = 24 if version >= _SCOPE_ABI else 16 if version >= _NETWORK_ABI else 8
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", handled, tcp, scoped), 24)
    ruleset = libc.call(libc.NR_LANDLOCK_CREATE_RULESET, attributes, size, 0, name="landlock_create_ruleset")
    try:
        for place, rights in rules:
            with contextlib.suppress(OSError):
                _add(ruleset, place, rights & handled)
        for port in ports if tcp else ():
            rule = ctypes.create_string_buffer(struct.pack("=QQ", tcp, port), 16)
            libc.call(libc.NR_LANDLOCK_ADD_RULE, ruleset, _RULE_NET_PORT, rule, 0, name="landlock_add_rule")
        libc.call(libc.NR_LANDLOCK_RESTRICT_SELF, ruleset, 0, name="landlock_restrict_self")
    finally:
        os.close(ruleset)


def _add(ruleset: int, place: str | int, rights: int) -> None:
    descriptor = place if isinstance(place, int) else os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        if rights:
            rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
            libc.call(libc.NR_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0, name="landlock_add_rule")
    finally:
        if not isinstance(place, int):
            os.close(descriptor)

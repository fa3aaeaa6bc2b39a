"""Say what it means that ssh ended: its words, and what to do.

Sources: ssh(1) "EXIT STATUS" (255 for an error of ssh itself, else that of the remote command), and the shell's 126
and 127 (POSIX, Shell Command Language, 2.8.2 "Exit Status for Commands").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_nvfp4.device.remote.base import RemoteError, Trouble

_SSH_FAILED = 255
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_KILLED = 137


@dataclass(frozen=True, slots=True)
class _Known:
    words: re.Pattern[str]
    trouble: Trouble
    do: str


def _known(words: str, trouble: Trouble, do: str) -> _Known:
    return _Known(re.compile(words, re.IGNORECASE), trouble, do)


_TRY = "see that `ssh HOST true` works by itself"
_KNOWN = (
    _known(
        "could not resolve hostname|name or service not known", "network", "check the host's name, or ~/.ssh/config"
    ),
    _known("connection refused", "network", "see that sshd runs there, and on which port (ssh:USER@HOST:PORT)"),
    _known(
        "connection timed out|operation timed out|no route to host|network is unreachable|banner exchange",
        "network",
        "check the network, a VPN or a jump host (ProxyJump in ~/.ssh/config)",
    ),
    _known(
        "remote host identification has changed",
        "login",
        "the machine has another host key than before: find out why before you remove the old one (ssh-keygen -R HOST)",
    ),
    _known(
        "host key verification failed|no matching host key",
        "login",
        "connect once by hand (`ssh HOST`), compare the host key and accept it",
    ),
    _known(
        r"permission denied|too many authentication failures|no supported authentication",
        "login",
        "load your key (ssh-add) or name it in ~/.ssh/config; no password is asked for here",
    ),
    _known(
        "bad configuration option|can't open user config|bad owner or permissions", "setup", "correct your ssh config"
    ),
    _known("identity file .* not accessible|no such identity", "login", "name a key that is there"),
    _known("no space left on device|disk quota exceeded", "setup", "make room there, or name another ?folder="),
    _known(
        "connection reset|connection closed|broken pipe|timeout, server|closed by remote host|connection to .* closed",
        "network",
        "run it again: what had been answered is kept",
    ),
)


def explain(host: str, python: str, status: int | None, errors: str) -> RemoteError:
    """The error of an ssh that has ended.

    Args:
        host: The machine, as the user named it.
        python: The Python that was to be started there.
        status: ssh's exit status; None while it still runs.
        errors: What it wrote to standard error.
    """
    said = _last(errors)
    if status == _NOT_FOUND:
        return RemoteError(
            "setup", f"{host} has no {python}{said}", "name a Python of it: ssh:HOST?python=/path/to/python"
        )
    if status == _NOT_EXECUTABLE:
        return RemoteError("setup", f"{python} of {host} cannot be executed{said}", "name another by ?python=")
    if status == _SSH_FAILED or status is None:
        for known in _KNOWN:
            if known.words.search(errors):
                return RemoteError(known.trouble, f"ssh to {host} failed{said}", known.do)
        return RemoteError("network", f"ssh to {host} ended{said}", _TRY.replace("HOST", host))
    if status in (_KILLED, -9):
        return RemoteError("lost", f"what ran on {host} was killed{said}", "it may have run out of memory")
    return RemoteError("far", f"what ran on {host} ended with status {status}{said}")


def _last(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("@")]
    return f": {' / '.join(lines[-3:])}" if lines else ""

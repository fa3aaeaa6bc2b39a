"""Errors of ssh: what its exit status and error output mean, and the remedy.

Sources: ssh(1) "EXIT STATUS" (255 for an error of ssh itself, else the status of the remote command), and the shell's
126 and 127 (POSIX, Shell Command Language, 2.8.2 "Exit Status for Commands"). The texts are those of OpenSSH.
"""

from __future__ import annotations

import re

from pytest_nvfp4.device.remote.base import ErrorKind, RemoteError

_SSH_FAILED = 255
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_KILLED = 137  # 128 + SIGKILL

_KNOWN: tuple[tuple[str, ErrorKind, str], ...] = (
    ("could not resolve hostname|name or service not known", "network", "check the host's name, or ~/.ssh/config"),
    ("connection refused", "network", "check that sshd runs there, and its port (ssh:USER@HOST:PORT)"),
    (
        "connection timed out|operation timed out|no route to host|network is unreachable|banner exchange",
        "network",
        "check the network, a VPN or a jump host (ProxyJump in ~/.ssh/config)",
    ),
    (
        "remote host identification has changed",
        "login",
        "the machine has another host key than before: find out why before you remove the old one (ssh-keygen -R HOST)",
    ),
    (
        "host key verification failed|no matching host key",
        "login",
        "connect once by hand (`ssh HOST`), compare the host key and accept it",
    ),
    (
        "permission denied|too many authentication failures|no supported authentication",
        "login",
        "load your key (ssh-add) or name it in ~/.ssh/config; passwords are not supported here",
    ),
    ("bad configuration option|can't open user config|bad owner or permissions", "setup", "correct your ssh config"),
    ("identity file .* not accessible|no such identity", "login", "name an existing key"),
    ("no space left on device|disk quota exceeded", "setup", "free space there, or name another ?folder="),
    (
        "connection reset|connection closed|broken pipe|timeout, server|closed by remote host|connection to .* closed",
        "network",
        "run it again: received results are cached",
    ),
)
"""Patterns of ssh's error output, with the kind of the error and the remedy; the first match applies."""


def explain(host: str, python: str, status: int | None, errors: str) -> RemoteError:
    """Return the error of an ssh process that ended.

    Args:
        host: The machine, as the user named it.
        python: The Python that it was to start there.
        status: Exit status of ssh; None if it still runs.
        errors: Its standard error.
    """
    detail = _last_lines(errors)
    if status == _NOT_FOUND:
        remedy = "name an installed Python: ssh:HOST?python=/path/to/python"
        return RemoteError("setup", f"{host} has no {python}{detail}", remedy)
    if status == _NOT_EXECUTABLE:
        remedy = "name another Python with ?python="
        return RemoteError("setup", f"{python} of {host} cannot be executed{detail}", remedy)
    if status == _SSH_FAILED or status is None:
        for pattern, kind, remedy in _KNOWN:
            if re.search(pattern, errors, re.IGNORECASE):
                return RemoteError(kind, f"ssh to {host} failed{detail}", remedy)
        return RemoteError("network", f"ssh to {host} ended{detail}", f"check that `ssh {host} true` works")
    if status in (_KILLED, -9):
        return RemoteError("lost", f"the agent on {host} was killed{detail}", "it may have run out of memory")
    return RemoteError("remote", f"the agent on {host} ended with status {status}{detail}")


def _last_lines(errors: str) -> str:
    # Lines of "@" frame ssh's warnings.
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("@")]
    return f": {' / '.join(lines[-3:])}" if lines else ""

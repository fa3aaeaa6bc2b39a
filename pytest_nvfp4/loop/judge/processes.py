"""Processes of a judge: this package's own commands, with a deadline and bounded output, each in its own session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation import run as run_isolated
from pytest_nvfp4.isolation.run_module import module_command
from pytest_nvfp4.sandbox_mode import MODE_VARIABLE
from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE

_MODULES: Final = {"pytest": "pytest", "nvfp4": "pytest_nvfp4.cli"}
_PASSED_ON: Final = (MODE_VARIABLE, CACHE_VARIABLE, "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "WAFER_API_URL")
_PREFIXES: Final = ("MODAL_", "NVFP4_MODAL_")
"""Variables of these commands besides those of every isolated process: their settings, and the tokens of a remote. The
kernels' own processes, below them, get none of these tokens."""


class Run(Protocol):
    """Runs ``pytest`` or ``nvfp4`` with arguments."""

    def __call__(self, arguments: Sequence[str], *, cwd: Path, deadline_s: float) -> Outcome:
        """Run it to its end.

        Raises:
            OSError: It could not be started.
            StoppedError: The loop is stopped; the process and all below it have ended.
        """
        ...


def run_product(arguments: Sequence[str], *, cwd: Path, deadline_s: float) -> Outcome:
    """Run a command of this very installation; see `Run`."""
    tool, *rest = arguments
    return run_isolated(
        module_command(_MODULES[tool], *rest), cwd=cwd, deadline_s=deadline_s, environ=passed_on(os.environ)
    )


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command gets besides those of every isolated process."""
    return {name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith(_PREFIXES)} | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
    }


def last_lines(outcome: Outcome, most: int = 12) -> str:
    """Return the end of what a process wrote, its errors first."""
    text = outcome.stderr.text.strip() or outcome.stdout.text.strip()
    return "\n".join(text.splitlines()[-most:])

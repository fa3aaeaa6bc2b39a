"""Warnings that Modal attaches to its answers, where warnings are errors (``pytest -W error``).

Its client issues them in the middle of receiving the answer: turned into an error, one would cost the session the
answer, and with it what was paid for. A test of the user's is not the place for it either.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from typing import Any

_MODULES = ("modal._traceback", "modal._utils.grpc_utils")
_NAME = "print_server_warning"
_MARK = "_nvfp4_only_warns"
_LOG = logging.getLogger(__name__)


def only_warn() -> None:
    """Let a server's warning that would be an error be a line of this module's log. Once a process."""
    for module in _MODULES:
        with contextlib.suppress(ImportError, AttributeError):
            found: Any = importlib.import_module(module)
            original = getattr(found, _NAME)
            if not hasattr(original, _MARK):
                setattr(found, _NAME, _warning(original))


def _warning(original: Any) -> Any:
    said: set[str] = set()

    @functools.wraps(original)
    def warn(message: str) -> None:
        try:
            original(message)
        except Warning:
            if message not in said:
                said.add(message)
                _LOG.warning("Modal says: %s", message)

    warn.__dict__[_MARK] = True
    return warn

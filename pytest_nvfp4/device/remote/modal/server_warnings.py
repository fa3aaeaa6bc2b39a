"""Log entries instead of exceptions for warnings that Modal attaches to its responses, under ``pytest -W error``.

Modal's client issues these warnings while it receives a response. As an exception, a warning would lose the session a
result that was paid for. A user's test is not the place for it either.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from typing import Any

_MODULES = ("modal._traceback", "modal._utils.grpc_utils")  # of Modal's client 1.5 and 1.6
_NAME = "print_server_warning"
_MARK = "_nvfp4_only_logs"
_LOG = logging.getLogger(__name__)


def log_server_warnings() -> None:
    """Log a server's warning that would raise; patches Modal's client once per process."""
    for name in _MODULES:
        with contextlib.suppress(ImportError, AttributeError):
            module: Any = importlib.import_module(name)
            original = getattr(module, _NAME)
            if not hasattr(original, _MARK):
                setattr(module, _NAME, _logging(original))


def _logging(original: Any) -> Any:
    logged: set[str] = set()

    @functools.wraps(original)
    def warn(message: str) -> None:
        try:
            original(message)
        except Warning:
            if message not in logged:
                logged.add(message)
                _LOG.warning("Modal's server: %s", message)

    warn.__dict__[_MARK] = True
    return warn

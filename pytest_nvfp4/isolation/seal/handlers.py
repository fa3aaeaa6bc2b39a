"""Signal handlers that receive no frame.

Python gives a handler the frame that the signal interrupted, through which the frames of all callers are reached, and
no audit event shows it. Handlers of a kernel therefore receive None, as the documentation of ``signal.signal`` allows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FrameType
from typing import Any


class _WithoutFrame:
    """A handler that calls another one with None in place of the frame."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, _frame: FrameType | None) -> Any:
        return self.handler(number, None)


def hide_frames() -> None:
    """Give no handler that is set from now on a frame; ``signal.getsignal`` still returns the handler as it was set."""
    module = importlib.import_module("_signal")  # `signal` calls its functions, and a kernel may, too
    install, current = module.signal, module.getsignal

    def shown(handler: Any) -> Any:
        return handler.handler if isinstance(handler, _WithoutFrame) else handler

    def set_handler(number: int, handler: Any, /) -> Any:
        return shown(install(number, _WithoutFrame(handler) if callable(handler) else handler))

    def get_handler(number: int, /) -> Any:
        return shown(current(number))

    vars(module).update(signal=set_handler, getsignal=get_handler)

"""Places in the user's code of the operations that the DSL builds, computed once for each place.

The DSL (4.8) looks the place up for every operation: it requests the stack, which the audit of a kernel records,
compares the file of each frame with its own folders, and iterates over the table of positions of the code. That is half
of the CPU time that building the IR of a large kernel takes. What a place is depends on code and instruction alone.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any


def replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield module, name and replacement of each function of the DSL that looks a place up.

    There are none for DSL 4.4, which looks up the line alone.
    """
    try:
        operations = importlib.import_module("cutlass._mlir_helpers.op")
    except ModuleNotFoundError:
        return
    if getattr(operations, "_CO_POSITIONS", None) is None:
        return
    yield operations, "_fast_frameinfo", _by_instruction(operations._fast_frameinfo)
    for name in ("_is_framework_stack_frame", "_get_caller_frame_info", "_find_user_frame"):
        if not hasattr(operations, name):
            return
    yield operations, "_is_framework_stack_frame", _by_code(operations._is_framework_stack_frame)

    @functools.wraps(operations._get_caller_frame_info)
    def caller() -> Any:
        # `inspect.currentframe` hands out frames, so that the audit would look for who else asks.
        frame = operations._find_user_frame(sys._getframe(2))
        return None if frame is None else operations._fast_frameinfo(frame)

    yield operations, "_get_caller_frame_info", caller


def _by_instruction(original: Callable[[FrameType], Any]) -> Callable[[FrameType], Any]:
    """Return ``original`` with its results stored by code and instruction."""
    known: dict[tuple[int, int], tuple[CodeType, Any]] = {}

    @functools.wraps(original)
    def place(frame: FrameType) -> Any:
        code = frame.f_code
        key = id(code), frame.f_lasti  # code objects compare by all their content
        if (found := known.get(key)) is None:
            found = known[key] = (code, original(frame))  # the reference keeps the identity unique
        return found[1]

    return place


def _by_code(original: Callable[[FrameType], bool]) -> Callable[[FrameType], bool]:
    """Return ``original`` with its results stored by code and the name of the module that it runs in."""
    known: dict[tuple[int, Any], tuple[CodeType, bool]] = {}

    @functools.wraps(original)
    def holds(frame: FrameType) -> bool:
        code = frame.f_code
        key = id(code), frame.f_globals.get("__name__")
        if (found := known.get(key)) is None:
            found = known[key] = (code, original(frame))
        return found[1]

    return holds

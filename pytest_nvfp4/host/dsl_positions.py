"""Places in the user's code of the operations that the DSL builds, computed once for each place.

The DSL (4.8) looks the place up for every operation: it requests the stack, which the audit of a kernel records,
compares the file of each frame with its own folders, and iterates over the table of positions of the code. That is half
of the CPU time that building the IR of a large kernel takes. What a place is depends on code and instruction alone.

DSL 4.4 takes the line of the frame that calls the operation, often one of its own files, and the compiler writes it as
a line of the user's file. Here it gets the first frame outside the DSL, as in 4.8.

The DSL takes all modules below ``cutlass`` for its own, NVIDIA's kernels in ``cutlass.operators`` (the package
nvidia-cutlass-operators) among them, so that each of their instructions would have the line of ``@cute.kernel``. Here
they are code of a user.

A function that passes on whatever its caller gives it (``def create(*args, **kwargs): Pipeline.create(*args,
**kwargs)``, of which FlashAttention 4 makes all its pipelines) says nothing of an operation: its caller's line does.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

_KERNELS = ("cutlass.operators", "cutlass.kernels")
"""Modules of NVIDIA's kernels, beside the DSL's own ones."""
_TAKES_ALL = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_UNPACKING_CALL = dis.opmap["CALL_FUNCTION_EX"]


class _UserFrames:
    """The module ``inspect`` as the decorator ``dsl_user_op`` of DSL 4.4 sees it."""

    @staticmethod
    def currentframe() -> SimpleNamespace:
        """Return a frame whose caller is the user's frame; without one, the frame that calls the operation."""
        caller = frame = sys._getframe(2)
        while _is_of_dsl(frame.f_globals.get("__name__", "")) or _passes_on(frame):
            if frame.f_back is None:
                return SimpleNamespace(f_back=caller)
            frame = frame.f_back
        return SimpleNamespace(f_back=frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield module, name and replacement of each function of the DSL that looks a place up."""
    try:
        operations = importlib.import_module("cutlass._mlir_helpers.op")
    except ModuleNotFoundError:  # DSL 4.4
        yield importlib.import_module("cutlass.base_dsl._mlir_helpers.op"), "inspect", _UserFrames()
        return
    if getattr(operations, "_CO_POSITIONS", None) is None:
        return
    place = _by_instruction(operations._fast_frameinfo)
    yield operations, "_fast_frameinfo", place
    located = operations._get_location_from_frame_info
    yield operations, "_get_location_from_frame_info", _by_context(located, operations.ir.Context)
    for name in ("_is_framework_stack_frame", "_is_framework_module", "_get_caller_frame_info", "_INCLUDE_LIB_FRAME"):
        if not hasattr(operations, name):
            return
    modules: set[Any] = set()
    holds = _by_code(operations._is_framework_stack_frame, modules, of_module=operations._is_framework_module)
    yield operations, "_is_framework_stack_frame", holds
    users: dict[tuple[int, int], tuple[CodeType, Any]] = {}

    @functools.wraps(operations._get_caller_frame_info)
    def caller() -> Any:
        # `inspect.currentframe` hands out frames, so that the audit would look for who else asks.
        frame: FrameType | None
        frame = start = sys._getframe(2)
        if operations._INCLUDE_LIB_FRAME:
            return place(start)
        while frame is not None:
            if frame.f_globals.get("__name__", "") not in modules:
                code = frame.f_code
                key = id(code), frame.f_lasti
                if (found := users.get(key)) is not None:
                    return found[1]
                if not holds(frame) and not _passes_on(frame):
                    users[key] = code, place(frame)
                    return users[key][1]
            frame = frame.f_back
        return place(start)

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


def _by_context(original: Callable[[Any], Any], contexts: Any) -> Callable[[Any], Any]:
    """Return ``original``, which makes the location of a place, with its results stored until the context changes."""
    known: dict[int, tuple[Any, Any]] = {}
    last: Any = None

    @functools.wraps(original)
    def location(place: Any) -> Any:
        nonlocal last
        context = contexts.current
        if context is not last:
            known.clear()
            last = context
        if (found := known.get(id(place))) is None:
            found = known[id(place)] = (place, original(place))  # the reference keeps the identity unique
        return found[1]

    return location


def _by_code(
    original: Callable[[FrameType], bool], modules: set[Any], *, of_module: Callable[[str], bool]
) -> Callable[[FrameType], bool]:
    """Return ``original``, which holds for all code of some modules, with its results stored, but for NVIDIA's kernels.

    They are stored by the name of the module, in ``modules``, and by the code in modules for which ``of_module`` does
    not hold: each read of a frame's code is an event of the audit.
    """
    known: dict[tuple[int, Any], tuple[CodeType, bool]] = {}

    @functools.wraps(original)
    def holds(frame: FrameType) -> bool:
        name = frame.f_globals.get("__name__", "")
        if name in modules:
            return True
        code = frame.f_code
        key = id(code), name
        if (found := known.get(key)) is None:
            kernels = _is_kernels(name)
            found = known[key] = (code, not kernels and original(frame))
            if not kernels and of_module(name):
                modules.add(name)
        return found[1]

    return holds


def _passes_on(frame: FrameType) -> bool:
    """Return whether a frame's function takes any arguments, and is at a call with unpacked ones."""
    code = frame.f_code
    return code.co_flags & _TAKES_ALL == _TAKES_ALL and code.co_code[frame.f_lasti] == _UNPACKING_CALL


def _is_of_dsl(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "cutlass" and not _is_kernels(module)


def _is_kernels(module: object) -> bool:
    return isinstance(module, str) and any(module == name or module.startswith(f"{name}.") for name in _KERNELS)

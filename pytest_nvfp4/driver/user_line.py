"""The line of the user's Python code that makes a call."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from pytest_nvfp4.driver.assigned import assigned_name

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_LIBRARY_PACKAGES = ("torch", "cutlass", "cuda", "numpy", "nvidia_cutlass_dsl", "triton", "nvidia")
"""Installed packages whose lines are not the user's; any other may be the kernel's own."""
_TOOLKIT = "/usr/local/cuda"
"""Beginning of the folders in which NVIDIA's installers put CUDA, whose headers are inlined into kernels."""
_OF_COMPILER = f"{os.sep}__nv_nvrtc_builtin_header.h"
"""Name of the header that NVRTC contains, as it calls it in line information, in the folder in which it runs."""
_OF_KERNELS = "cutlass"
"""The folder of site-packages in which NVIDIA's kernels are installed (nvidia-cutlass-operators: ``cutlass.operators``,
``cutlass.kernels``). CuTe DSL itself, whose package has the same name, lies in the folder ``nvidia_cutlass_dsl``."""
_DEPTH = 2
"""Lines reported for nested calls."""


class UserLine(NamedTuple):
    """A line of a file, its function, and the user's line that called the function."""

    file: str
    line: int
    function: str
    caller: UserLine | None = None

    def __str__(self) -> str:
        called = f", called at {self.caller}" if self.caller is not None else ""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}{called}"


def user_line() -> UserLine | None:
    """Return the innermost line that is neither this package's nor a library's; None if there is none."""
    lines: list[tuple[str, int, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < _DEPTH:
        code = frame.f_code
        if is_user_file(code.co_filename):
            lines.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    result: UserLine | None = None
    for line in reversed(lines):
        result = UserLine(*line, caller=result)
    return result


def call_native(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user's in C++. What it allocates is not the value of the call that Python's line makes."""
    return function(*args, **kwargs)


def user_variable() -> str | None:
    """Return the variable to which that line assigns the value of its call; None if it does not directly."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code is call_native.__code__:
            return None
        frame = frame.f_back
    return None if frame is None else assigned_name(frame)


@lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Return whether a file is neither this package's, nor the standard library's, nor a known library's."""
    if file.startswith(("<", _PACKAGE)) or file.endswith(_OF_COMPILER):
        return False
    # Not every package lies in site-packages: `pip install --target`, PYTHONPATH.
    origins = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARY_PACKAGES)
    if file.startswith(tuple(f"{Path(origin).parent}{os.sep}" for origin in origins if origin)):
        return False
    installed = f"{os.sep}site-packages{os.sep}"
    if installed in file:
        package = Path(file.rpartition(installed)[2]).parts[0]
        return package == _OF_KERNELS or package not in _LIBRARY_PACKAGES
    return not file.startswith((_LIBRARY, _TOOLKIT))

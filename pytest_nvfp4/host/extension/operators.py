"""Operators that extensions define with torch's dispatcher (``TORCH_LIBRARY``, ``TORCH_LIBRARY_IMPL``).

torch itself calls most of them. Where it asks for an operator on device tensors, ``host.tensor`` calls the extension's
kernel, so it must know which operators are not torch's own: kernels of those need a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.after_import import after_import
from pytest_nvfp4.host.stashed import Stashed


class Operators:
    """The operators of this process's extensions, from ``start`` until the stack is closed.

    Args:
        stashed: The exception that a stand-in has raised.
    """

    def __init__(self, stashed: Stashed) -> None:
        self._stashed = stashed
        self._names = set[str]()

    def start(self, stack: contextlib.ExitStack) -> None:
        """Let calls of operators raise what a stand-in has raised, and device tensors know the operators.

        Both happen as torch is imported, before the kernel: from then on, nothing may replace functions.
        """
        stack.callback(after_import("torch._ops", lambda module: self._replace_calls(module, stack)))
        stack.callback(after_import("pytest_nvfp4.host.tensor", lambda module: self._pass_names(module, stack)))

    def _replace_calls(self, module: ModuleType, stack: contextlib.ExitStack) -> None:
        for owner in (module.OpOverload, module.OpOverloadPacket):
            _replace(stack, owner, "__call__", self._stashed.raising(owner.__call__))

    def _pass_names(self, module: ModuleType, stack: contextlib.ExitStack) -> None:
        _replace(stack, module.HostCudaTensor, "extension_operators", self._names)

    @contextlib.contextmanager
    def registering(self, extension: str) -> Iterator[None]:
        """Note the operators that an extension defines in this context.

        Raises:
            HostSideError: it replaces an operator of torch on the device.
        """
        defined, with_kernel = _defined(), _with_kernel()
        yield
        added = _with_kernel() - with_kernel
        if replaced := sorted(name for name in added if name.startswith("aten::")):
            raise HostSideError(
                f"the extension {extension} registers a kernel for CUDA of torch's {replaced[0]}, which has no "
                "stand-in without a GPU: define an operator of its own with TORCH_LIBRARY"
            )
        self._names |= (_defined() - defined) | added


def _defined() -> set[str]:
    return set(importlib.import_module("torch")._C._dispatch_get_all_op_names())


def _with_kernel() -> set[str]:
    return set(importlib.import_module("torch")._C._dispatch_get_registrations_for_dispatch_key("CUDA"))


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)

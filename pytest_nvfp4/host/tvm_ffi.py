"""Compile and call kernels that ask for TVM-FFI through the DSL's own executor.

With ``--enable-tvm-ffi`` the DSL links the host code against a runtime whose calls of CUDA cannot be overridden. The
kernel itself does not depend on it: layouts, PTX and launches are the same without. What differs is the calling
convention, so the arguments of a call are brought into the form the executor takes, by the arguments it was compiled
for: a tensor becomes ``{address, dynamic extents, dynamic strides}``, an integer for a pointer becomes one, and the
stream of the environment, which such calls leave out, is torch's current one. ``tvm_ffi`` itself need not be installed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

_ATTRIBUTE = "_nvfp4_compiled_for"


def in_place_of(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Let a replacement count as part of the file it replaces a function of.

    The DSL takes the innermost frame outside of its own files for the user's line and quotes it in its messages.
    """
    code, function = getattr(original, "__code__", None), cast(Any, replacement)
    if code is not None:
        function.__code__ = function.__code__.replace(co_filename=code.co_filename)
    return replacement


class PlainCalls:
    """Turns TVM-FFI off for the compiles of this process and adapts their calls.

    Attributes:
        used: Whether any compile asked for TVM-FFI.
    """

    def __init__(self) -> None:
        self.used = False
        self._asked = False

    def enabled(self, asked: Callable[[Any], object]) -> Callable[[Any], bool]:
        """The replacement of ``CompileOptions.enable_tvm_ffi``, which notes the answer and gives another."""
        known = asked

        def check(options: Any) -> bool:
            try:
                self._asked |= bool(known(options))
            except Exception:  # the DSL refuses the option where tvm_ffi is not installed; it is not needed here
                self._asked = True
            self.used |= self._asked
            return False

        return check

    def compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of ``CompileCallable._compile``: remembers what a function was compiled for."""

        @functools.wraps(original)
        def compile_it(self_: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            self._asked = False
            result = original(self_, func, *args, **kwargs)
            if self._asked and result is not None:
                setattr(result, _ATTRIBUTE, _by_name(func, args, kwargs))
            return result

        return in_place_of(original, compile_it)

    @staticmethod
    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of a compiled function's ``__call__``."""

        @functools.wraps(original)
        def call(self_: Any, *args: Any, **kwargs: Any) -> Any:
            compiled_for = getattr(self_, _ATTRIBUTE, None)
            if compiled_for is None:
                return original(self_, *args, **kwargs)
            spec = getattr(self_, "execution_args", None) or self_.args_spec
            names = [*spec._meta.pos_names, *spec._meta.kwonly_names]
            return original(self_, **arguments(names, compiled_for, args, kwargs))

        return in_place_of(original, call)

    @staticmethod
    def from_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of ``cute.runtime.from_dlpack``: a tensor for TVM-FFI is a plain one here."""

        @functools.wraps(original)
        def convert(*args: Any, enable_tvm_ffi: bool = False, **kwargs: Any) -> Any:  # noqa: ARG001
            return original(*args, **kwargs)

        return in_place_of(original, convert)


def _by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What each parameter of a function was compiled for; ``kwargs`` may hold options of the compile too."""
    signature = inspect.signature(func)
    own = {name: value for name, value in kwargs.items() if name in signature.parameters}
    return dict(signature.bind_partial(*args, **own).arguments)


def arguments(
    names: Sequence[str], compiled_for: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, each in the form the executor takes; what it lacks is left to the executor.

    Args:
        names: The parameters in their order.
        compiled_for: What each was compiled for.
        args: Positional arguments of the call, without the streams of the environment.
        kwargs: Its named arguments.
    """
    left = list(args)
    environment = _current_stream([*args, *kwargs.values()])
    full = len(left) + len(kwargs) >= len(names)
    found: dict[str, Any] = {}
    for name in names:
        made_for = compiled_for.get(name)
        if name in kwargs:
            found[name] = converted(made_for, kwargs[name])
        elif getattr(made_for, "use_tvm_ffi_env_stream", False) and not full:
            found[name] = _stream(environment)
        elif left:
            found[name] = converted(made_for, left.pop(0))
    if left:
        raise TypeError(f"{len(left)} arguments too many: the function takes {', '.join(names) or 'none'}")
    return found


def converted(made_for: Any, value: Any) -> Any:
    """A value in the form the executor takes for a parameter that was compiled for ``made_for``."""
    if isinstance(value, tuple | list) and isinstance(made_for, tuple | list) and len(value) == len(made_for):
        members = [converted(one, member) for one, member in zip(made_for, value, strict=True)]
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    if made_for is None or hasattr(value, "__c_pointers__"):
        return value
    if hasattr(made_for, "use_tvm_ffi_env_stream"):
        return _stream(value or 0) if value is None or isinstance(value, int) else value
    if hasattr(made_for, "dynamic_shapes_mask") and callable(getattr(value, "data_ptr", None)):
        return _packed_tensor(made_for, value)
    if isinstance(value, int) and hasattr(made_for, "memspace") and hasattr(made_for, "dtype"):
        return _Packed([(ctypes.c_uint64, value)])
    if isinstance(value, int | float) and hasattr(type(made_for), "width") and not isinstance(made_for, int | float):
        return type(made_for)(value)
    return value


def _packed_tensor(made_for: Any, tensor: Any) -> _Packed:
    """``{address, {dynamic extents}, {dynamic strides}}``, counted in elements of the DSL's type.

    A byte of torch's packed FP4 holds two elements: the contiguous mode is twice as long, the other strides are twice
    as wide.
    """
    shape, stride = list(tensor.shape), list(tensor.stride())
    if made_for.element_type.width == 4 and tensor.element_size() == 1:
        packed = next((i for i, step in enumerate(stride) if step == 1), None)
        shape = [extent * 2 if i == packed else extent for i, extent in enumerate(shape)]
        stride = [step if i == packed else step * 2 for i, step in enumerate(stride)]
    narrow = getattr(made_for, "_use_32bit_stride", False)
    return _Packed(
        [(ctypes.c_uint64, int(tensor.data_ptr()))],
        _dynamic(shape, made_for.dynamic_shapes_mask, made_for.shape, 32),
        _dynamic(stride, made_for.dynamic_strides_mask, getattr(made_for, "stride", None), 32 if narrow else 64),
    )


def _dynamic(values: Sequence[int], mask: Sequence[int], symbols: Any, width: int) -> list[_Field]:
    known = symbols if isinstance(symbols, tuple | list) and len(symbols) == len(values) else [None] * len(values)
    bits = [getattr(symbol, "width", width) for symbol in known]
    return [
        (ctypes.c_int64 if size == 64 else ctypes.c_int32, int(value))
        for value, dynamic, size in zip(values, mask, bits, strict=True)
        if dynamic
    ]


def _current_stream(values: Sequence[Any]) -> int:
    """The stream of the environment: torch's current one where a tensor of torch's is passed, else the default."""
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        return 0
    return int(torch.cuda.current_stream().cuda_stream)


def _stream(value: int) -> Any:
    return importlib.import_module("cuda.bindings.driver").CUstream(value)


_Field = tuple[Any, int]


class _Packed:
    """An argument as the host code reads it: its fields behind one pointer."""

    def __init__(self, fields: Sequence[_Field], *groups: Sequence[_Field]) -> None:
        parts = []
        for group in (fields, *groups):
            kind = type("_Group", (ctypes.Structure,), {"_fields_": [(f"f{i}", t) for i, (t, _) in enumerate(group)]})
            parts.append(kind(*(value for _, value in group)))
        whole = type("_Argument", (ctypes.Structure,), {"_fields_": [(f"g{i}", type(p)) for i, p in enumerate(parts)]})
        self._data = whole(*parts)

    def __c_pointers__(self) -> list[int]:
        return [ctypes.addressof(self._data)]

"""Compile and call kernels that request TVM-FFI through the DSL's own executor.

With ``--enable-tvm-ffi`` the DSL links the host code against a runtime whose CUDA calls cannot be overridden. The
kernel does not depend on it: layouts, PTX and launches are the same without. Only the calling convention differs, so
the arguments of a call are converted to the form of the executor, according to the arguments of the compile: a tensor
becomes ``{address, dynamic extents, dynamic strides}``, an integer for a pointer becomes a pointer, and the stream of
the environment, which such calls omit, is torch's current one. ``tvm_ffi`` itself need not be installed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pytest_nvfp4.collection import rare_collection
from pytest_nvfp4.driver.launches import HostSideError

_ATTRIBUTE = "_nvfp4_compiled_for"


def in_place_of(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Give a replacement the file name of the function that it replaces, and return it.

    The DSL quotes the innermost frame outside its own files as the user's line in its messages.
    """
    code, function = getattr(original, "__code__", None), cast(Any, replacement)
    if code is not None:
        function.__code__ = function.__code__.replace(co_filename=code.co_filename)
    return replacement


class PlainCalls:
    """Turns TVM-FFI off for the compiles of this process and adapts their calls.

    Attributes:
        used: Whether any compile requested TVM-FFI.
    """

    def __init__(self) -> None:
        self.used = False
        self._requested = False

    def enabled(self, original: Callable[[Any], object]) -> Callable[[Any], bool]:
        """Return the replacement of ``CompileOptions.enable_tvm_ffi``, which records the option and returns False."""

        def check(options: Any) -> bool:
            try:
                self._requested |= bool(original(options))
            except Exception:  # the DSL raises if tvm_ffi is not installed, but it is not needed here
                self._requested = True
            self.used |= self._requested
            return False

        return check

    def compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``CompileCallable._compile``, which records the arguments of the compile."""

        @functools.wraps(original)
        def compile_it(self_: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            self._requested = False
            try:
                bound, options = _bound(func, args, kwargs)
            except (TypeError, ValueError):  # arguments that do not fit: the DSL has the message
                return original(self_, func, *args, **kwargs)
            with rare_collection():
                result = original(self_, func, *bound.args, **bound.kwargs, **options)
            if self._requested and result is not None:
                setattr(result, _ATTRIBUTE, dict(bound.arguments))
            return result

        return in_place_of(original, compile_it)

    @staticmethod
    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of a compiled function's ``__call__``, which converts the arguments."""

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
    def exporting(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of a compiled function's ``export_to_c``, which refuses one for TVM-FFI."""

        @functools.wraps(original)
        def export(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self_, _ATTRIBUTE, None) is None:
                return original(self_, *args, **kwargs)
            raise HostSideError(
                "export_to_c of a function with --enable-tvm-ffi has no stand-in without a GPU: TVM-FFI is turned off "
                "in the simulator. Call the compiled function itself"
            )

        return in_place_of(original, export)

    @staticmethod
    def from_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``cute.runtime.from_dlpack``, which ignores ``enable_tvm_ffi``."""

        @functools.wraps(original)
        def convert(*args: Any, enable_tvm_ffi: bool = False, **kwargs: Any) -> Any:  # noqa: ARG001
            return original(*args, **kwargs)

        return in_place_of(original, convert)


def _bound(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[inspect.BoundArguments, dict[str, Any]]:
    """Return the arguments of a compile by parameter, and its options, which ``kwargs`` may contain, too.

    What stands for a number, a symbolic integer or a type, becomes a number of the DSL: TVM-FFI takes it, and the
    DSL's own executor does not.
    """
    try:
        signature = inspect.signature(func, eval_str=True)
    except Exception:  # an annotation that does not evaluate, whatever it raises
        signature = inspect.signature(func)
    own = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind_partial(*args, **own)
    for name, value in bound.arguments.items():
        bound.arguments[name] = _number(signature.parameters[name].annotation, value)
    return bound, {name: value for name, value in kwargs.items() if name not in own}


def _number(annotation: Any, value: Any) -> Any:
    annotated = isinstance(annotation, type) and hasattr(annotation, "width")
    if isinstance(value, tuple | list):
        members = [_number(None, member) for member in value]
        same = all(new is old for new, old in zip(members, value, strict=True))
        return value if same else type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    if isinstance(value, type):  # a type for a parameter that is a type is left alone
        return annotation(1) if annotated and hasattr(value, "width") else value
    if not (hasattr(value, "divisibility") and hasattr(value, "width")):
        return value
    cutlass = importlib.import_module("cutlass")
    return (annotation if annotated else cutlass.Int64 if value.width == 64 else cutlass.Int32)(1)


def arguments(
    names: Sequence[str], compiled_for: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, in the form of the executor, which reports missing ones.

    Args:
        names: The parameters in order.
        compiled_for: By parameter, the argument of the compile.
        args: Positional arguments of the call, without the streams of the environment.
        kwargs: Its named arguments.

    Raises:
        TypeError: too many arguments.
    """
    left = list(args)
    environment = _current_stream([*args, *kwargs.values()])
    full = len(left) + len(kwargs) >= len(names)
    result: dict[str, Any] = {}
    for name in names:
        made_for = compiled_for.get(name)
        if name in kwargs:
            result[name] = converted(made_for, kwargs[name])
        elif getattr(made_for, "use_tvm_ffi_env_stream", False) and not full:
            result[name] = _stream(environment)
        elif left:
            result[name] = converted(made_for, left.pop(0))
    if left:
        raise TypeError(f"{len(left)} arguments too many: the function takes {', '.join(names) or 'none'}")
    return result


def converted(made_for: Any, value: Any) -> Any:
    """Return a value in the form of the executor, for a parameter whose argument of the compile was ``made_for``."""
    if isinstance(value, tuple | list) and isinstance(made_for, tuple | list) and len(value) == len(made_for):
        members = [converted(each, member) for each, member in zip(made_for, value, strict=True)]
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
    """Return ``{address, {dynamic extents}, {dynamic strides}}``, in elements of the DSL's type.

    A byte of torch's packed FP4 has two elements, so that the extent of the contiguous mode and the strides of the
    others are doubled.
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
    """Return the stream of the environment: torch's current one for calls with a torch tensor, else the default."""
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        return 0
    return int(torch.cuda.current_stream().cuda_stream)


def _stream(value: int) -> Any:
    return importlib.import_module("cuda.bindings.driver").CUstream(value)


_Field = tuple[Any, int]


class _Packed:
    """An argument in the form of the host code: a structure behind one pointer."""

    def __init__(self, fields: Sequence[_Field], *groups: Sequence[_Field]) -> None:
        parts = []
        for group in (fields, *groups):
            kind = type("_Group", (ctypes.Structure,), {"_fields_": [(f"f{i}", t) for i, (t, _) in enumerate(group)]})
            parts.append(kind(*(value for _, value in group)))
        whole = type("_Argument", (ctypes.Structure,), {"_fields_": [(f"g{i}", type(p)) for i, p in enumerate(parts)]})
        self._data = whole(*parts)

    def __c_pointers__(self) -> list[int]:
        return [ctypes.addressof(self._data)]

"""Arguments of a kernel that is launched without host code: numbers, arrays, tensor maps, tables of pointers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

ELEMENTS: Final[Mapping[str, str]] = {
    **{f"{kind}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    **{"f16": "<f2", "f32": "<f4", "f64": "<f8", "bf16": "<u2"},
    **{"e4m3": "<u1", "e5m2": "<u1", "ue8m0": "<u1", "e2m1x2": "<u1"},
}
"""Element types, and numpy's type that holds their bits."""
_MAP_TYPES: Final = {
    **{"u8": 0, "u16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9},
    **{"f32_ftz": 10, "tf32": 11, "tf32_ftz": 12, "u4": 13, "u4_align16": 14, "u6_align16": 15},
    **{"i8": 0, "i16": 1, "e4m3": 0, "e5m2": 0, "ue8m0": 0, "e2m1x2": 0},
}
"""``CUtensorMapDataType`` by the name of an element type."""
SWIZZLES: Final = ("none", "32B", "64B", "128B", "128B_atom32B", "128B_atom32B_flip8B", "128B_atom64B")
INTERLEAVES: Final = ("none", "16B", "32B")
PROMOTIONS: Final = ("none", "64B", "128B", "256B")


class ArgumentError(ValueError):
    """An argument that cannot be made. The message names it and the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array of device memory, passed as its address.

    Attributes:
        values: Its elements at the launch. Element types that numpy has not are given as their bits.
        name: Its name in messages and in the result; ``argN`` by default.
        element: Name of the element type, if it is not numpy's own: ``bf16``, ``e4m3``, ``e2m1x2``.
    """

    values: NDArray[Any]
    name: str = ""
    element: str = ""


@dataclass(frozen=True, slots=True)
class Uninitialised:
    """An output: an array of device memory that nothing has written, so that a read before a write is a finding."""

    shape: tuple[int, ...]
    element: str = "f32"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """The address of an array that is another argument, or of a byte in it."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Pointers:
    """A table of pointers in device memory, passed as its address."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor of an array, passed by value (``const __grid_constant__ CUtensorMap``).

    Attributes:
        array: Name of the array.
        box: Size of the box in elements, the innermost dimension first.
        dims: Sizes in elements, the innermost dimension first; those of the array by default.
        strides: Strides in bytes of all dimensions but the innermost; those of the array by default.
        steps: Element strides; ones by default.
        element: Name of the type; that of the array by default.
        swizzle, interleave, l2: Words of ``SWIZZLES``, ``INTERLEAVES``, ``PROMOTIONS``.
        nan: Whether elements out of bounds are NaN, not zero.
    """

    array: str
    box: tuple[int, ...]
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    element: str = ""
    swizzle: str = "none"
    interleave: str = "none"
    l2: str = "none"
    nan: bool = False


Argument: TypeAlias = (
    "NDArray[Any] | Array | Uninitialised | Reference | Pointers | TensorMap | np.generic | bytes | bool | int | float"
)
"""What may be passed: a number takes the type of its parameter, a numpy scalar and bytes have their own."""


@dataclass(slots=True)
class Prepared:
    """Arguments as plain data for the worker.

    Attributes:
        arrays: Description of each array.
        values: Elements of each initialised array, by name.
        arguments: Description of each argument.
    """

    arrays: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    arguments: list[dict[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [array["name"] for array in self.arrays]


def prepare(arguments: Sequence[Argument], arrays: Sequence[Array | Uninitialised] = ()) -> Prepared:
    """Return arguments as plain data; ``arrays`` are not passed, and others refer to them. Raises ArgumentError."""
    made = Prepared()
    for array in arrays:
        if not array.name:
            raise ArgumentError("an array that is not passed needs a name, to which an argument refers")
        _add(made, array, array.name)
    for number, given in enumerate(arguments):
        argument = Array(given) if isinstance(given, np.ndarray) else given
        if isinstance(argument, Array | Uninitialised):
            made.arguments.append({"array": _add(made, argument, f"arg{number}"), "offset": 0})
        elif isinstance(argument, Reference):
            made.arguments.append({"array": argument.name, "offset": argument.offset})
        elif isinstance(argument, Pointers):
            if not argument.names:
                raise ArgumentError(
                    f"argument {number} is a table of no pointers: name arrays, or pass 0 for a null pointer"
                )
            made.arguments.append({"pointers": list(argument.names)})
        elif isinstance(argument, TensorMap):
            made.arguments.append({"map": argument})
        elif isinstance(argument, np.generic):
            made.arguments.append({"bytes": argument.tobytes().hex()})
        elif isinstance(argument, bytes):
            made.arguments.append({"bytes": argument.hex()})
        elif isinstance(argument, bool | int | float):
            made.arguments.append({"number": argument})
        else:
            raise ArgumentError(f"argument {number} is {type(argument).__name__}: pass a number or an array of numpy")
    _resolve(made)
    return made


def _add(made: Prepared, array: Array | Uninitialised, default: str) -> str:
    name = array.name or default
    if name in made.names:
        raise ArgumentError(f"two arrays have the name {name}: give one of them another name")
    if isinstance(array, Array):
        values = np.ascontiguousarray(array.values)
        if values.dtype.hasobject or not values.dtype.isnative:
            raise ArgumentError(f"{name} has elements of type {values.dtype}: pass numbers in the machine's byte order")
        element, shape, dtype = array.element, values.shape, values.dtype
        made.values[name] = values
    else:
        if array.element not in ELEMENTS:
            raise ArgumentError(f"{name}: type {array.element!r} does not exist; types are {', '.join(ELEMENTS)}")
        element, shape, dtype = array.element, array.shape, np.dtype(ELEMENTS[array.element])
    if not element:
        element = f"{'f' if dtype.kind == 'f' else 'u' if dtype.kind in 'ub' else 'i'}{8 * dtype.itemsize}"
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    made.arrays.append(
        {"name": name, "shape": list(map(int, shape)), "dtype": dtype.str, "element": element, "size": size}
        | {"initialised": isinstance(array, Array)}
    )
    return name


def _resolve(made: Prepared) -> None:
    """Check the names that arguments refer to, and complete tensor maps by the arrays they describe."""
    known = {array["name"]: array for array in made.arrays}
    for number, argument in enumerate(made.arguments):
        names = argument.get("pointers") or [argument["array"]] if "array" in argument or "pointers" in argument else []
        described: TensorMap | None = argument.get("map")
        for name in [described.array] if described is not None else names:
            if name not in known:
                raise ArgumentError(
                    f"argument {number} refers to {name!r}, which is no array; arrays are {', '.join(known) or 'none'}"
                )
        if described is not None:
            argument["map"] = _map(described, known[described.array])


def _map(made: TensorMap, array: Mapping[str, Any]) -> dict[str, Any]:
    element = made.element or array["element"]
    if element not in _MAP_TYPES:
        raise ArgumentError(f"a tensor map of {made.array}: type {element!r} is none of {', '.join(_MAP_TYPES)}")
    item = np.dtype(array["dtype"]).itemsize
    dims = made.dims or tuple(reversed(array["shape"]))
    strides = made.strides or tuple(item * int(np.prod(dims[:at], dtype=np.int64)) for at in range(1, len(dims)))
    words = {
        "swizzle": (made.swizzle, SWIZZLES),
        "interleave": (made.interleave, INTERLEAVES),
        "l2_promotion": (made.l2, PROMOTIONS),
    }
    for what, (word, known) in words.items():
        if word not in known:
            raise ArgumentError(f"a tensor map of {made.array}: {what} {word!r} is none of {', '.join(known)}")
    return {
        "array": made.array,
        "element_type": _MAP_TYPES[element],
        "dims": list(dims),
        "strides": list(strides),
        "box": list(made.box),
        "element_strides": list(made.steps or (1,) * len(dims)),
        "oob_fill": int(made.nan),
        **{what: known.index(word) for what, (word, known) in words.items()},
    }

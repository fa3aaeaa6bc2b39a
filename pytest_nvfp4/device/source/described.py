"""Arguments of a kernel as text, for the command line.

::

    i32:5  0.5  0x10            a number, of a type or of the parameter's size
    f16[256,128]                an output, not initialised
    f32[64]:random(7)           zeros, ones, arange, fill(VALUE), random, random(SEED)
    x=inputs.npy                an array of a file; NAME= names any array
    &x  &x+256                  the address of an array again
    ptrs(x,y)                   a table of pointers
    map(x,box=64x64,swizzle=128B)   a tensor map; also dims, strides, steps, type, interleave, l2, oob=nan
    hex:00ff                    bytes, as a struct by value
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.device.source.arguments import (
    ELEMENTS,
    Argument,
    ArgumentError,
    Array,
    Pointers,
    Reference,
    TensorMap,
    Uninitialised,
)

_NAMED: Final = re.compile(r"([A-Za-z_]\w*)=(?!=)(.+)", re.DOTALL)
_ARRAY: Final = re.compile(r"(\w+)\[([\d,\sx]*)\](?::(.+))?")
_CALL: Final = re.compile(r"(\w+)(?:\((.*)\))?")
_ALIASES: Final = {"int": "i32", "uint": "u32", "float": "f32", "double": "f64", "half": "f16", "bool": "u8"}
_NAN_BITS: Final = 0x7F


def described(text: str, *, seed: int = 0) -> Argument:
    """Return the argument that a text describes. Raises ArgumentError.

    ``seed``: Seed of ``random`` without one; it differs for the arguments of a kernel, so that no two are equal.
    """
    name, value = "", text.strip()
    if (named := _NAMED.fullmatch(value)) is not None:
        name, value = named[1], named[2].strip()
    try:
        made = _value(value, name, seed)
    except (ValueError, OverflowError, OSError, SyntaxError) as error:
        raise ArgumentError(f"argument {text!r}: {error}") from None
    if name and not isinstance(made, Array | Uninitialised):
        raise ArgumentError(f"argument {text!r}: only an array has a name")
    return made


def _value(text: str, name: str, seed: int) -> Argument:
    if text.startswith("&"):
        target, _, offset = text[1:].partition("+")
        return Reference(target.strip(), int(offset or "0", 0))
    if text.startswith("hex:"):
        return bytes.fromhex(text.removeprefix("hex:"))
    if (found := re.fullmatch(r"ptrs\((.*)\)", text)) is not None:
        return Pointers(tuple(part.strip() for part in found[1].split(",") if part.strip()))
    if (found := re.fullmatch(r"map\((.*)\)", text, re.DOTALL)) is not None:
        return _map(found[1])
    if text.endswith(".npy"):
        return Array(np.load(Path(text), allow_pickle=False), name)
    if (found := _ARRAY.fullmatch(text)) is not None:
        return _array(found[1], found[2], found[3], name, seed)
    kind, colon, number = text.partition(":")
    if colon:
        return _scalar(_ALIASES.get(kind, kind), number)
    return _number(text)


def _number(text: str) -> int | float | bool:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            "is no number, array, &NAME, map(...), ptrs(...), hex:... or FILE.npy (`nvfp4 guide cuda`)"
        ) from None


def _scalar(kind: str, text: str) -> Argument:
    if kind == "bf16":
        return _bfloat16(np.array([float(text)])).tobytes()
    if kind not in ELEMENTS or kind.startswith(("e", "ue")):
        raise ValueError(f"type {kind!r} does not exist; types are {', '.join(ELEMENTS)}")
    dtype = np.dtype(ELEMENTS[kind])
    value = float(text) if dtype.kind == "f" else int(text, 0)
    return dtype.type(value)  # type: ignore[no-any-return]


def _array(kind: str, dims: str, init: str | None, name: str, seed: int) -> Argument:
    kind = _ALIASES.get(kind, kind)
    if kind not in ELEMENTS:
        raise ValueError(f"type {kind!r} does not exist; types are {', '.join(ELEMENTS)}")
    shape = tuple(int(part) for part in re.split(r"[,x]", dims) if part.strip())
    if init is None:
        return Uninitialised(shape, kind, name)
    call = _CALL.fullmatch(init.strip())
    word, given = (call[1], call[2]) if call is not None else ("", None)
    count = int(np.prod(shape, dtype=np.int64))
    if word == "random":
        return Array(_random(kind, shape, int(given, 0) if given else seed), name, kind)
    if word in ("zeros", "ones", "fill"):
        value = {"zeros": "0", "ones": "1"}.get(word, given)
        if value is None:
            raise ValueError("write fill(VALUE)")
        values = np.full(shape, float(value) if kind in ("f16", "f32", "f64", "bf16") else int(value, 0))
        return Array(_as(values, kind), name, kind)
    if word == "arange":
        return Array(_as(np.arange(count).reshape(shape), kind), name, kind)
    raise ValueError(f"{init!r} is none of zeros, ones, arange, fill(VALUE), random, random(SEED)")


def _as(values: NDArray[Any], kind: str) -> NDArray[Any]:
    return _bfloat16(values) if kind == "bf16" else values.astype(ELEMENTS[kind])


def _bfloat16(values: NDArray[Any]) -> NDArray[Any]:
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _random(kind: str, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return normal numbers; of integers and of formats of 4 to 8 bits all patterns but those that are no number."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(ELEMENTS[kind])
    if dtype.kind == "f" or kind == "bf16":
        return _as(rng.standard_normal(shape), kind)
    bounds = np.iinfo(dtype)
    values: NDArray[Any] = rng.integers(bounds.min, bounds.max, size=shape, dtype=dtype, endpoint=True)
    if kind in ("e4m3", "e5m2"):
        first = _NAN_BITS if kind == "e4m3" else 0x7C
        values = np.where((values & 0x7F) >= first, values & 0xBF, values).astype(dtype)
    return np.where(values == 0xFF, 0x7F, values).astype(dtype) if kind == "ue8m0" else values


def _map(text: str) -> TensorMap:
    array, *rest = (part.strip() for part in text.split(","))
    given: dict[str, Any] = {}
    names = {"type": "element", "l2": "l2", "swizzle": "swizzle", "interleave": "interleave"}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} of a tensor map: write NAME=VALUE")
        if key in ("box", "dims", "strides", "steps"):
            given[key] = tuple(int(size, 0) for size in value.split("x"))
        elif key in names:
            given[names[key]] = value
        elif key == "oob":
            given["nan"] = {"nan": True, "zero": False}[value] if value in ("nan", "zero") else None
            if given["nan"] is None:
                raise ValueError("oob is zero or nan")
        else:
            raise ValueError(
                f"a tensor map has no {key!r}: box, dims, strides, steps, type, swizzle, interleave, l2, oob"
            )
    if "box" not in given:
        raise ValueError("a tensor map needs box=INNERxOUTER")
    return TensorMap(array, **given)

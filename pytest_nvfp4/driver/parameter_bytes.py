"""The bytes of a launch's parameters that have a meaning. What else a host passes is what its memory held before.

Compiled host code fills the members of a structure and the first half of a tensor map, and passes the whole: padding
and the second half differ from call to call. Here they are zeros, so that equal launches are equal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from pytest_nvfp4.driver import ptx_module
from pytest_nvfp4.driver.tensormap import TENSOR_MAP_BYTES, looks_like_tensormap

_LOAD: Final = re.compile(
    r"\bld\.param(?:::\w+)?(?:\.[a-z]\w*(?:::\w+)*)*?(?:\.v(\d))?\.[a-z]+(\d+)\s[^\[\];]*\[\s*([\w$%]+)\s*(?:\+\s*(\d+))?\s*\]"
)
"""A load of a parameter by name: elements, bits of one, name and offset."""

_IN_NAME: Final = re.compile(r"[\w$%]")

Read = tuple[frozenset[int] | None, ...]


def read_bytes(text: str, kernel: str) -> Read:
    """Return the offsets of the bytes of each parameter that a kernel of a PTX module loads by name.

    None for a parameter that it names in another way, because it may read any byte through the address, and for a
    number, which has no padding.

    Raises:
        PtxModuleError: The module has no such kernel.
    """
    names, body = ptx_module.parameters_and_body(text, kernel)  # a structure is an array of bytes
    read: dict[str, set[int]] = {name: set() for name in names}
    loads = [match for match in _LOAD.finditer(body) if match[3] in read]
    for load in loads:
        start = int(load[4] or 0)
        read[load[3]] |= set(range(start, start + int(load[1] or 1) * int(load[2]) // 8))
    by_name = {load.start(3) for load in loads}
    otherwise = {name for at, name in _uses(body, names) if at not in by_name}
    return tuple(frozenset(read[name]) if names[name] and name not in otherwise else None for name in names)


def _uses(body: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield where a text has one of some names, and the name."""
    # A text that they begin with, which is long, is found many times faster than an alternative of them all.
    first, last = min(names, default=""), max(names, default="")
    alike = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    beginning = first[:alike]
    for match in re.finditer(rf"{re.escape(beginning)}[\w$%]{'*' if beginning else '+'}", body):
        at = match.start()
        if match[0] in names and not _IN_NAME.match(body[at - 1 : at]):
            yield at, match[0]


def with_zeros(params: Sequence[bytes], read: Read) -> tuple[bytes, ...]:
    """Return parameters with zeros in place of what has no meaning.

    Args:
        params: The bytes of each parameter.
        read: See ``read_bytes``.
    """
    return tuple(_with_zeros(data, offsets) for data, offsets in zip(params, read, strict=True))


def _with_zeros(data: bytes, offsets: frozenset[int] | None) -> bytes:
    if offsets:  # one of which nothing is read is shown as it was given
        return bytes(byte if at in offsets else 0 for at, byte in enumerate(data))
    if offsets is None and looks_like_tensormap(data, null=True):
        return data[: TENSOR_MAP_BYTES // 2].ljust(TENSOR_MAP_BYTES, b"\0")
    return data

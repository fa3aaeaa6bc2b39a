"""Compares the outputs of a case by the rules of its parts: ``python -m tests.silicon.compare A.npz B.npz``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.silicon.model import Approximate, Bits, Case, Part, Reported
from tests.silicon.runners import Outputs
from tests.silicon.store import CHUNK, load

__all__ = ["Difference", "differences", "ulps_apart"]

_INTEGERS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FLOATS: dict[str, tuple[int, int]] = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two outputs of a part differ. ``allowed`` if the ISA leaves room for it."""

    part: str
    message: str
    allowed: bool


def differences(case: Case, left: Outputs, right: Outputs) -> Iterator[Difference]:
    """The differences between two outputs as kept, part by part."""
    for name in [*left, *(name for name in right if name not in left)]:
        if name not in left or name not in right:
            yield Difference(name, "is kept on one side only", False)
            return
        if left[name].shape != right[name].shape:
            yield Difference(name, f"has shape {left[name].shape} here and {right[name].shape} there", False)
            return
    if case.chunked:
        for name in left:
            wrong = np.flatnonzero(left[name] != right[name])
            if wrong.size:
                where = ", ".join(f"{i * CHUNK}" for i in wrong[:4])
                yield Difference(
                    name, f"{wrong.size} of {left[name].size} chunks of {CHUNK} bytes, at byte {where}", False
                )
        return
    parts = list(case.compared())
    known = {part.buffer for part in parts}
    parts += [Part(name, name, 0, left[name].size) for name in left if name not in known]
    for part in parts:
        yield from _compare(part, *(side[part.buffer].reshape(-1)[part.start : part.stop] for side in (left, right)))


def _compare(part: Part, left: NDArray[Any], right: NDArray[Any]) -> Iterator[Difference]:
    kind = _INTEGERS[left.dtype.itemsize]
    a, b = np.ascontiguousarray(left).view(kind), np.ascontiguousarray(right).view(kind)
    rule = part.rule
    if isinstance(rule, Approximate):  # each half of a pair
        narrow = _INTEGERS[_FLOATS[rule.kind][0] // 8]
        a, b = a.view(narrow), b.view(narrow)
    wrong = a != b
    if not wrong.any():
        return
    note, allowed = "", False
    if isinstance(rule, Approximate):
        both = _is_nan(a, rule.kind) & _is_nan(b, rule.kind)
        apart = np.where(both, 0, ulps_apart(a, b, rule.kind))
        far = apart > rule.ulps
        if rule.absolute:
            with np.errstate(all="ignore"):
                far &= ~(np.abs(_values(a, rule.kind) - _values(b, rule.kind)) <= rule.absolute)
        note = f", {apart.max():g} ulp apart at most of the {rule.ulps:g} allowed ({rule.reason})"
        allowed = not far.any()
        wrong = wrong if allowed else far
    elif isinstance(rule, Reported):
        note, allowed = f" ({rule.reason})", True
    else:
        assert isinstance(rule, Bits)
    at = np.flatnonzero(wrong)
    digits = 2 * a.dtype.itemsize
    shown = "; ".join(f"[{i}] {int(a[i]):0{digits}x} and {int(b[i]):0{digits}x}" for i in at[:4])
    yield Difference(part.name, f"{at.size} of {a.size} differ: {shown}{note}", allowed)


def _code(patterns: NDArray[Any], kind: str) -> NDArray[Any]:
    return patterns & patterns.dtype.type((1 << _FLOATS[kind][0]) - 1)


def _is_nan(patterns: NDArray[Any], kind: str) -> NDArray[np.bool_]:
    bits, mantissa = _FLOATS[kind]
    infinity = (1 << bits - 1) - (1 << mantissa)
    found: NDArray[np.bool_] = (_code(patterns, kind) & patterns.dtype.type((1 << bits - 1) - 1)) > infinity
    return found


def _values(patterns: NDArray[Any], kind: str) -> NDArray[np.float64]:
    code = _code(patterns, kind)
    if kind == "bf16":
        return (code.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    width = _FLOATS[kind][0] // 8
    return code.astype(_INTEGERS[width]).view(f"f{width}").astype(np.float64)


def ulps_apart(left: NDArray[Any], right: NDArray[Any], kind: str) -> NDArray[np.float64]:
    """Steps between two codes on the line of all codes of the type; both zeros are one place."""
    bits = _FLOATS[kind][0]

    def place(patterns: NDArray[Any]) -> NDArray[np.float64]:
        code = _code(patterns, kind).astype(np.uint64)
        size = (code & np.uint64((1 << bits - 1) - 1)).astype(np.float64)
        return np.where(code >> np.uint64(bits - 1) != 0, -size, size)

    return np.abs(place(left) - place(right))


def main(arguments: list[str]) -> int:
    from tests.silicon.cases import every_case

    a, b = (load(Path(name)) for name in arguments)
    print(f"left: {a.device}, {a.driver}, {a.date}\nright: {b.device}, {b.driver}, {b.date}")  # noqa: T201
    bad = same = 0
    for case in every_case():
        left, right = a.records.get(case.name), b.records.get(case.name)
        if left is None or right is None:
            print(f"{case.name}: recorded on {'neither' if left is right else 'one side only'}")  # noqa: T201
            continue
        if (left.ptx_sha256, left.inputs_sha256) != (right.ptx_sha256, right.inputs_sha256):
            print(f"{case.name}: other PTX or inputs")  # noqa: T201
            bad += 1
            continue
        if left.error or right.error:
            expected = bool(case.refused)
            word = "PROBE" if expected else "ERROR"
            print(f"{case.name}: {word} left {left.error[:300]!r} right {right.error[:300]!r}")  # noqa: T201
            bad += not expected
            continue
        found = list(differences(case, left.outputs, right.outputs))
        for item in found:
            print(f"{case.name} / {item.part}: {'allowed' if item.allowed else 'WRONG'}: {item.message}")  # noqa: T201
        wrong = any(not item.allowed for item in found)
        bad += wrong
        same += not wrong
    print(f"{same} cases agree, {bad} do not")  # noqa: T201
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Kernels that execute one tensor store, and the bytes that it must write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.tensormap import ElementType
from tests.sim.tma.kernels import DATA, copy_in, first, noise, prologue, run_tensor
from tests.sim.tma.maps import Geometry, stored

F16 = Geometry(ElementType.F16, (96, 40), (208,), (64, 16), (), 3)
COMMIT = "cp.async.bulk.commit_group;"
WAIT = "cp.async.bulk.wait_group 0;"
WAIT_READ = "cp.async.bulk.wait_group.read 0;"


def store(
    geometry: Geometry, at: Sequence[int], *, tail: str = "", operands: str = "", address: str = f"%r1+{DATA}",
    mode: str = "tile", what: str = "cp.async", op: str = "",
) -> str:  # fmt: skip
    """Return a tensor store or reduction of the box at ``at``."""
    coordinates = "{" + ", ".join(str(v) for v in at) + "}"
    return (
        f"{what}.bulk.tensor.{len(geometry.dims)}d.global.shared::cta{op}.{mode}.bulk_group{tail} "
        f"[%rd101, {coordinates}], [{address}]{operands};"
    )


def simple(
    geometry: Geometry, at: Sequence[int], *, issue: str | None = None, after: Sequence[str] = (COMMIT, WAIT),
    data: np.ndarray | None = None, seed: int = 3, **kwargs: Any,
) -> Any:  # fmt: skip
    """Fill shared memory and run one store."""
    issue = issue or store(geometry, at)
    size = -(-geometry.bytes // 128) * 128
    body = "\n".join([prologue(), copy_in(size), first("\n".join([issue, *after]))])
    data = noise(size, seed) if data is None else data
    return run_tensor(body, geometry, extra={"in": data}, **kwargs)


def expected(
    geometry: Geometry, before: np.ndarray, data: np.ndarray, at: Sequence[int], rows: Any = None
) -> np.ndarray:
    """Return the tensor after the store."""
    shared = {1024 + DATA + i: int(value) for i, value in enumerate(data)}
    return stored(geometry, before, shared, at, 1024 + DATA, rows)


def reduced(op: str, element: int, old: NDArray[Any], new: NDArray[Any], **kwargs: Any) -> NDArray[Any]:
    """A reduction of 64 elements into each of the two rows of a tensor of 48 columns, from column 8 on."""
    width = old.dtype.itemsize
    geometry = Geometry(element, (48, 2), (64 * width,), (64, 2))
    tensor = np.zeros(geometry.extent + 64, np.uint8)
    rows = np.zeros((2, 64), old.dtype)
    rows[:, 8:48] = old[:, :40]
    tensor[: 2 * 64 * width - 16 * width] = rows.view(np.uint8).ravel()[: 2 * 64 * width - 16 * width]
    data = np.ascontiguousarray(new).view(np.uint8).ravel()
    issue = store(geometry, (8, 0), what="cp.reduce.async", op=f".{op}")
    ran = simple(geometry, (8, 0), issue=issue, data=data, tensor=tensor, **kwargs)
    after = np.zeros(2 * 64 * width, np.uint8)
    after[: 112 * width] = ran["x"][: 112 * width]
    after = after.view(old.dtype).reshape(2, 64)
    assert not after[:, :8].any()
    return after[:, 8:48]


def integers(dtype: Any, seed: int) -> NDArray[Any]:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, (2, 64), dtype, endpoint=True)


def bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """fp32 rounded to the nearest bf16, ties to even, in exact arithmetic."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    low, kept = bits & 0xFFFF, bits >> 16
    return (kept + ((low > 0x8000) | ((low == 0x8000) & (kept & 1 == 1)))).astype(np.uint16)

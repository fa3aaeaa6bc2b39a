"""Kernels that execute one tensor load, and the bytes that it must deliver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.fault import Fault
from tests.sim.tma.kernels import DATA, copy_out, expect, first, prologue, run_tensor, wait
from tests.sim.tma.maps import Geometry, loaded

F16 = Geometry(ElementType.F16, (96, 40), (208,), (64, 16), (), 3)
SHARED = 2048
"""Address of dynamic shared memory: 1,024 bytes are the system's, and it is aligned to 1,024."""


def coordinates(values: Sequence[int]) -> str:
    """Return a vector operand."""
    return "{" + ", ".join(str(v) for v in values) + "}"


def load(
    geometry: Geometry, at: Sequence[int], *, dst: str = "shared::cta", tail: str = "", operands: str = "",
    dim: int | None = None, address: str = f"%r1+{DATA}", bar: str = "%r1",
) -> str:  # fmt: skip
    """Return a tensor load of the box at ``at``."""
    dim = dim or len(geometry.dims)
    return (
        f"cp.async.bulk.tensor.{dim}d.{dst}.global.tile.mbarrier::complete_tx::bytes{tail} "
        f"[{address}], [%rd101, {coordinates(at)}], [{bar}]{operands};"
    )


def expected(
    geometry: Geometry, source: np.ndarray, at: Sequence[int], *, address: int = DATA, size: int | None = None
) -> np.ndarray:
    """Return the bytes of shared memory from ``address`` on after the load."""
    found = loaded(geometry, source, at, 1024 + address)
    size = geometry.bytes if size is None else size
    return np.array([found[1024 + address + i] for i in range(size)], np.uint8)


def simple(
    geometry: Geometry, at: Sequence[int], *, asynchronous: Any = None, issue: str | None = None,
    size: int | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run one load and copy its bytes to ``out``."""
    size = geometry.bytes if size is None else size
    body = "\n".join(
        [prologue(), first(expect(size) + "\n" + (issue or load(geometry, at))), wait(), copy_out(geometry.bytes)]
    )
    out = {"out": np.zeros(geometry.bytes, np.uint8)}
    return run_tensor(body, geometry, extra=out, asynchronous=asynchronous, **kwargs)


def multicast(mask: int, *, group: int = 0, bar: str = "%r1", ranks: int = 4) -> tuple[str, str, dict[str, Any]]:
    """CTA 0 (or whoever holds rank 0) loads for all of the mask; the CTAs of ``mask`` wait and copy out."""
    suffix = f".cta_group::{group}" if group else ""
    issue = (
        f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster{suffix} "
        f"[%r1+{DATA}], [%rd101, {{8, 2}}], [{bar}], {mask};"
    )
    clustered = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
    return issue, clustered, {"grid": (ranks, 1, 1), "cluster": (ranks, 1, 1)}


def fails(geometry: Geometry, at: Sequence[int], **kwargs: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        simple(geometry, at, **kwargs)
    return caught.value

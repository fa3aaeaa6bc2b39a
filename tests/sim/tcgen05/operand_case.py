"""Operands read from shared memory by their descriptors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.tcgen05.descriptor import decode_matrix
from pytest_nvfp4.sim.tcgen05.operand import SharedChunks, geometry, k_major_rows


def gather(cta: Cta, bits: int, *, rows: int, mn: bool = False, size: int = 1) -> NDArray[Any]:
    chunks = SharedChunks(cta.shared)
    decoded = decode_matrix(bits, "test")
    table = geometry(decoded, rows=rows, mn=mn, element_bytes=size, what="test")
    first, unwritten = chunks.check(decoded.start, table, what="test")
    if unwritten is not None:
        raise unwritten.fault
    both = np.concatenate([chunks.gather(first, table)] * 2)
    found = k_major_rows(both, 2, rows=rows, mn=mn, element_bytes=size)
    assert (found[:, 0] == found[:, 1]).all()
    return found[:, 0]

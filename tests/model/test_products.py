"""Independent products of a launch: dense, grouped, and what cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_nvfp4.model.products import products_of
from pytest_nvfp4.model.recording import Recording, Shape, Unit
from pytest_nvfp4.model.scope import kind_of
from pytest_nvfp4.model.storage import loads

from .builder import ProgramBuilder, footprint, recording
from .record_twins import RECORDINGS

Tile = tuple[int, int, int]
"""Product, row and column of a tile."""


def gemm(clusters: Sequence[Sequence[Tile]], *, steps: int = 3, read: bool = True, split: int = 1) -> Recording:
    """Return a GEMM whose clusters work on tiles one after the other; ``split`` clusters share the K of a tile."""
    program = ProgramBuilder()
    load, multiply, store = (program.warp(0, number, role) for number, role in enumerate(("load", "mma", "tmem")))
    prints: dict[tuple[object, ...], int] = {}
    used: list[list[int]] = [[] for _ in range(len(clusters) * split)]
    for number in range(len(clusters[0])):
        done = program.phase(1)
        for step in range(steps):
            full, empty = program.phase(2), program.phase(1)
            for operand in "AB":
                load.issue(Unit.TMA_LOAD, Shape(rows=8, bytes=1024, ctas=(0,)), slot=program.slot(), done=[full])
                for at, own in enumerate(used):
                    product, row, column = clusters[at // split][number]
                    place = (operand, product, row if operand == "A" else column, step + steps * (at % split))
                    own.append(prints.setdefault(place, len(prints)))
            multiply.wait(full)
            multiply.issue(Unit.TENSOR, Shape(m=128, n=64, k=16, kind="f16", ctas=(0,)), pipe=0)
            multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[empty])
        multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[done])
        store.wait(done)
        if read:
            loaded = program.phase(1)
            store.issue(Unit.TMEM_LOAD, Shape(columns=64), done=[loaded])
            store.wait(loaded)
        store.issue(Unit.TMA_STORE, Shape(bytes=1024), slot=program.slot())
        for at, own in enumerate(used):
            own.append(prints.setdefault(("C", *clusters[at // split][number]), len(prints)))
    made = [footprint(8 * number, 8) for number in range(len(prints))]
    return replace(recording(program.build(), slots=used, footprints=made), arch="sm_100a")


DENSE = [(0, row, column) for row in range(2) for column in range(3)]


@pytest.mark.parametrize(
    ("made", "products"),
    [
        (gemm([[tile] for tile in DENSE]), 1),
        (gemm([DENSE[:3], DENSE[3:]]), 1),
        (gemm([DENSE]), 1),
        (gemm([[tile] for tile in DENSE], split=2), 1),
        (gemm([[tile] for tile in (*DENSE, (1, 0, 0))]), 2),
        (gemm([[(0, 0, 0), (1, 0, 0)], [(0, 0, 1), (2, 0, 0)]]), 3),
        (gemm([[(batch, 0, 0)] for batch in range(5)]), 5),
        (gemm([DENSE], read=False), None),
    ],
)
def test_products_are_counted_and_name_the_kind(made: Recording, products: int | None) -> None:
    assert products_of(made) == products
    which = {None: "", 1: "dense "}.get(products, "grouped ")
    assert kind_of([made]) == f"{which}tcgen05 GEMM"


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("group_v1c_gpumode-bench-0", 8),
        ("group_v2e_gpumode-bench-1", 8),
        ("group_v5e_gpumode-bench-0", 8),
        ("group_v6b_gpumode-bench-3", 2),
        ("gemm_fp8_128_192_2_4096_4096_192", 1),
        ("gemm_e2m1_256_128_2_7168_257_4096", 1),
    ],
)
def test_products_of_recorded_kernels(name: str, products: int) -> None:
    (made,) = loads((RECORDINGS / f"{name}.npz").read_bytes())
    assert products_of(made) == products

"""CTAs without a kernel: what a unit needs of a launch, and nothing else."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_nvfp4.finding import Where
from pytest_nvfp4.sim.ptx.uses import Uses
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.cta import Cluster, Cta
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05.tmem import Tmem

FULL = 0xFFFF_FFFF


class Program:
    """A program in which each load is used at once."""

    frames = SimpleNamespace(behind=lambda *_, **__: (True, None))

    def uses(self, at: int, _registers: frozenset[int] | None = None, **_: str) -> Uses:
        return Uses(frozenset({at}))


class Launch:
    """A launch that only keeps things."""

    def __init__(self, *, asynchronous: Asynchronous | None = None, threads: int = 192) -> None:
        self.machine = Machine(asynchronous=asynchronous)
        self.program = Program()
        self.counters: Counter[str] = Counter()
        self.block = (threads, 1, 1)
        self.shape = (2, 1, 1)
        self.reports: list[tuple[str, str]] = []
        self.units: dict[type, Any] = {}
        self.counting = False
        self.detail = None

    def unit(self, kind: type) -> Any:
        if kind not in self.units:
            self.units[kind] = kind(self)
        return self.units[kind]

    def place(self, at: int) -> str:
        return f"instruction {at}"

    def where(self, warp: Any, at: int, **_: Any) -> Where:
        return Where(kernel="kernel", warp=warp.index, at=at)

    def where_cta(self, cta: Cta) -> Where:
        return Where(kernel="kernel", cta=cta.index)

    def report(self, kind: str, message: str, *, hint: str = "", **_: Any) -> None:  # noqa: ARG002
        self.reports.append((kind, message))


def make_ctas(count: int = 1, *, shared_bytes: int = 196608, asynchronous: Asynchronous | None = None) -> list[Cta]:
    """CTAs of one cluster, each with six warps."""
    launch = Launch(asynchronous=asynchronous)
    cluster = Cluster(launch, (0, 0, 0), (count, 1, 1))  # type: ignore[arg-type]
    scheduler = SimpleNamespace(ready=[])
    for rank in range(count):
        cta = Cta(
            cluster, rank, (rank, 0, 0), place=(rank, 0, 0), shared_bytes=shared_bytes,
            scheduler=scheduler,  # type: ignore[arg-type]
        )  # fmt: skip
        cluster.ctas.append(cta)
        for index in range(6):
            cta.warps.append(Warp(cta, index, registers=[]))
    return cluster.ctas


def poke(cta: Cta, address: int, data: np.ndarray) -> None:
    """Write bytes at a shared address (an offset in the window)."""
    data = np.ascontiguousarray(data).view(np.uint8).ravel()
    cta.shared.write(address - 1024, data, what="test")


def own(cta: Cta, columns: int = 512, base: int = 0, number: int = 1) -> Tmem:
    """Allocate columns."""
    tmem = cta.unit(Tmem)
    tmem.take(base, columns, number)
    return tmem


def matrix_bits(start: int, *, leading: int = 0, stride: int = 0, swizzle: int = 0) -> int:
    """A matrix descriptor, written from the ISA's table."""
    return (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | swizzle << 61

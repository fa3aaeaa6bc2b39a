"""Kernels of a few ``wgmma`` instructions, and the findings of their runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.sim.wgmma import case, oracle

N = 16
COUNT = N // 2
OPCODE = f"m64n{N}k16.f32.f16.f16"


def operands(seed: int = 0, steps: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the image of shared memory, A and B."""
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, size=(64, 16 * steps)).astype(np.float16)
    b = rng.integers(-4, 5, size=(N, 16 * steps)).astype(np.float16)
    image = np.zeros(8192 + 128 * N, np.uint8)
    oracle.place(image, a.view(np.uint16), address=oracle.SMEM, width=128, stride=1024)
    oracle.place(image, b.view(np.uint16), address=oracle.SMEM + 8192, width=128, stride=1024)
    return image, a.astype(np.float64), b.astype(np.float64)


def mma(step: int = 0, *, scale: str = "1", first: int = 20) -> str:
    """Return the instruction of one step of K."""
    pair = [oracle.descriptor(oracle.SMEM + at + 32 * step, width=128, stride=1024) for at in (0, 8192)]
    return case.wgmma(OPCODE, COUNT, *pair, flags="1, 1, 0, 0", scale=scale, first=first)


def result(ran: Any) -> np.ndarray:
    """Return the accumulator."""
    return oracle.from_registers(ran["out"], np.float32)


def said(ran: Any) -> list[str]:
    """Return the messages of the findings."""
    return [finding.message for finding in ran.grid.findings]


class Monitor:
    """A monitor that records fences, issues and waits of wgmma."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def wgmma_fenced(self, w: Any) -> None:
        self.heard.append(("fence", w.index))

    def wgmma_issued(self, w: Any, _group: Any, operation: Any, _at: Any) -> None:
        units = [sorted(set(part.ravel().tolist())) for part in (operation.a_units, operation.b_units)]
        self.heard.append(("issue", w.index, operation.number, operation.arrived, units))

    def wgmma_waited(self, w: Any, _group: Any, done: Any) -> None:
        self.heard.append(("wait", w.index, done))


def half_mma(step: int, *, scale: str) -> str:
    pair = [oracle.descriptor(oracle.SMEM + at + 32 * step, width=128, stride=1024) for at in (0, 8192)]
    return case.wgmma(f"m64n{N}k16.f16.f16.f16", COUNT // 2, *pair, flags="1, 1, 0, 0", scale=scale)

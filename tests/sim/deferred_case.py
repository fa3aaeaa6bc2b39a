"""Kernels and sources for the tests of deferred registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Kernel


def kernel(body: str) -> Kernel:
    """Parse a body as a kernel."""
    text = (
        ".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry kernel()\n{\n.reg .pred %p<9>;\n"
        f".reg .b16 %rs<9>;\n.reg .b32 %r<20>;\n.reg .b64 %rd<9>;\n{body}\nret;\n}}\n"
    )
    return parse(text).kernels["kernel"]


class RecordingSource:
    """Source that records the registers it settles."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values
        self.asked: list[int] = []

    def settle(self, index: int) -> Any:
        """Record and return a value."""
        self.asked.append(index)
        return self.values[index]

"""Peak rates of GPUs by the name that the driver gives them, each with its source.

Rates are dense (no 2:4 sparsity) and those of the vendor's datasheets, which assume the boost clock. A chip may clock
higher for a while: an H100 SXM's 989 TFLOP/s is 132 SMs x 4096 fp16 operations x 1.83 GHz, and its clock goes up to
1.98 GHz, 8 % more. What must never be exceeded therefore needs a margin; see ``roofline.IMPOSSIBLE``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate (operations or bytes a second) and where it is from."""

    per_second: float
    source: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a GPU can do at most.

    Attributes:
        gpu: Name of the product.
        math: Rate of the unit that an NVFP4 GEMM runs on: FP4 tensor cores where there are any, else fp16 ones, because
            the product of an E2M1 value and its E4M3 scale is exact in fp16 and in no smaller type of Hopper's.
        math_unit: Name of that unit.
        fastest: Rate of the fastest dense matrix unit of all: no kernel does more, whatever it makes of its inputs.
        memory: Bytes a second to and from device memory.
        measured_math: What a library's matrix product reached on such a GPU, where that was measured.
        measured_memory: What a device-to-device copy reached, bytes read plus written.
    """

    gpu: str
    math: Rate
    math_unit: str
    fastest: Rate
    memory: Rate
    measured_math: Rate | None = None
    measured_memory: Rate | None = None


_T = 1e12


def _hopper(
    gpu: str,
    *,
    fp16: float,
    fp8: float,
    memory: float,
    source: str,
    measured_math: Rate | None = None,
    measured_memory: Rate | None = None,
) -> Peaks:
    return Peaks(
        gpu,
        Rate(fp16 * _T, f"{source}: fp16 Tensor Core, dense (half of the figure with sparsity)"),
        "fp16",
        Rate(fp8 * _T, f"{source}: FP8 Tensor Core, dense (half of the figure with sparsity)"),
        Rate(memory * _T, f"{source}: GPU memory bandwidth"),
        measured_math,
        measured_memory,
    )


def _blackwell(gpu: str, *, fp4: float, memory: float, source: str) -> Peaks:
    rate = Rate(fp4 * _T, f"{source}: FP4 Tensor Core, dense")
    return Peaks(gpu, rate, "FP4", rate, Rate(memory * _T, f"{source}: GPU memory bandwidth"))


_H100_SHEET = "NVIDIA H100 datasheet"
_H200_SHEET = "NVIDIA H200 datasheet"

_TABLE: tuple[tuple[re.Pattern[str], Peaks], ...] = (
    # The driver calls the SXM part of the H100 "NVIDIA H100 80GB HBM3" and that of the H200 "NVIDIA H200".
    (
        re.compile(r"H200 NVL"),
        _hopper("H200 NVL", fp16=835.5, fp8=1671, memory=4.8, source=f"{_H200_SHEET}, NVL"),
    ),
    (
        re.compile(r"(?<![A-Z])H200"),
        _hopper(
            "H200 SXM",
            fp16=989.5,
            fp8=1979,
            memory=4.8,
            source=f"{_H200_SHEET}, SXM",
            measured_math=Rate(790 * _T, "measured on an H200: 8192 x 8192 x 8192 bf16 product, random data"),
            measured_memory=Rate(4.3 * _T, "measured on an H200: device-to-device copy of 8.6 GB"),
        ),
    ),
    (re.compile(r"H100 PCIe"), _hopper("H100 PCIe", fp16=756, fp8=1513, memory=2.0, source=f"{_H100_SHEET}, PCIe")),
    (re.compile(r"H100 NVL"), _hopper("H100 NVL", fp16=835.5, fp8=1671, memory=3.9, source=f"{_H100_SHEET}, NVL")),
    (
        re.compile(r"(?<![A-Z])H100"),
        _hopper("H100 SXM", fp16=989.5, fp8=1979, memory=3.35, source=f"{_H100_SHEET}, SXM"),
    ),
    (
        re.compile(r"GH200 144G"),
        _hopper("GH200 144 GB", fp16=989.5, fp8=1979, memory=4.9, source="NVIDIA GH200 datasheet, HBM3e"),
    ),
    (
        re.compile(r"GH200"),
        _hopper("GH200 96 GB", fp16=989.5, fp8=1979, memory=4.0, source="NVIDIA GH200 datasheet, HBM3"),
    ),
    (re.compile(r"GB300"), _blackwell("GB300", fp4=15_000, memory=8.0, source="NVIDIA GB300 NVL72 datasheet")),
    (re.compile(r"GB200"), _blackwell("GB200", fp4=10_000, memory=8.0, source="NVIDIA GB200 NVL72 datasheet")),
    (re.compile(r"B300"), _blackwell("B300", fp4=14_000, memory=8.0, source="NVIDIA DGX B300 datasheet, an eighth")),
    (re.compile(r"B200"), _blackwell("B200", fp4=9_000, memory=8.0, source="NVIDIA DGX B200 datasheet, an eighth")),
)


def peaks_of(device_name: str) -> Peaks | None:
    """The peaks of a device by the driver's name, such as ``NVIDIA H200``; None for one that is not listed.

    A MIG slice has a part of its GPU's units, and nothing here says which, so it counts as not listed.
    """
    if "MIG" in device_name:
        return None
    return next((peaks for pattern, peaks in _TABLE if pattern.search(device_name)), None)


def known_gpus() -> tuple[str, ...]:
    """The products whose peaks are known."""
    return tuple(peaks.gpu for _, peaks in _TABLE)

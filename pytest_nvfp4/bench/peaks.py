"""Peak rates of GPUs by the driver's name of the device, each with its source.

Rates are dense (no 2:4 sparsity) and those of the vendor's datasheets, which assume the boost clock. A chip may exceed
it for a while: an H100 SXM's 989 TFLOP/s is 132 SMs x 4096 fp16 operations x 1.83 GHz, and its clock goes up to
1.98 GHz, 8 % more. A hard bound therefore needs a margin; see ``roofline.IMPOSSIBLE``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate (operations or bytes a second) and its source."""

    per_second: float
    source: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of a GPU.

    Attributes:
        gpu: Name of the product.
        math: Rate of the unit that an NVFP4 GEMM runs on: FP4 tensor cores if the GPU has them, else fp16 ones, because
            the product of an E2M1 value and its E4M3 scale is exact in fp16 and in no smaller type of Hopper's.
        math_unit: Name of that unit.
        fastest: Rate of the fastest dense matrix unit, a bound for any kernel.
        memory: Bytes a second to and from device memory.
    """

    gpu: str
    math: Rate
    math_unit: str
    fastest: Rate
    memory: Rate


_T = 1e12


def _hopper(gpu: str, *, fp16: float, fp8: float, memory: float, source: str) -> Peaks:
    return Peaks(
        gpu,
        Rate(fp16 * _T, f"{source}: fp16 Tensor Core, dense (half of the figure with sparsity)"),
        "fp16",
        Rate(fp8 * _T, f"{source}: FP8 Tensor Core, dense (half of the figure with sparsity)"),
        Rate(memory * _T, f"{source}: GPU memory bandwidth"),
    )


def _blackwell(gpu: str, *, fp4: float, memory: float, source: str) -> Peaks:
    rate = Rate(fp4 * _T, f"{source}: FP4 Tensor Core, dense")
    return Peaks(gpu, rate, "FP4", rate, Rate(memory * _T, f"{source}: GPU memory bandwidth"))


_H100, _H200, _GH200 = (f"NVIDIA {name} datasheet" for name in ("H100", "H200", "GH200"))

# The first pattern that matches decides. The driver's name of the SXM part of the H100 is "NVIDIA H100 80GB HBM3", that
# of the H200 is "NVIDIA H200".
_TABLE = {
    r"H200 NVL": _hopper("H200 NVL", fp16=835.5, fp8=1671, memory=4.8, source=f"{_H200}, NVL"),
    r"(?<![A-Z])H200": _hopper("H200 SXM", fp16=989.5, fp8=1979, memory=4.8, source=f"{_H200}, SXM"),
    r"H100 PCIe": _hopper("H100 PCIe", fp16=756, fp8=1513, memory=2.0, source=f"{_H100}, PCIe"),
    r"H100 NVL": _hopper("H100 NVL", fp16=835.5, fp8=1671, memory=3.9, source=f"{_H100}, NVL"),
    r"(?<![A-Z])H100": _hopper("H100 SXM", fp16=989.5, fp8=1979, memory=3.35, source=f"{_H100}, SXM"),
    r"GH200 144G": _hopper("GH200 144 GB", fp16=989.5, fp8=1979, memory=4.9, source=f"{_GH200}, HBM3e"),
    r"GH200": _hopper("GH200 96 GB", fp16=989.5, fp8=1979, memory=4.0, source=f"{_GH200}, HBM3"),
    r"GB300": _blackwell("GB300", fp4=15_000, memory=8.0, source="NVIDIA GB300 NVL72 datasheet"),
    r"GB200": _blackwell("GB200", fp4=10_000, memory=8.0, source="NVIDIA GB200 NVL72 datasheet"),
    r"B300": _blackwell("B300", fp4=14_000, memory=8.0, source="NVIDIA DGX B300 datasheet, an eighth"),
    r"B200": _blackwell("B200", fp4=9_000, memory=8.0, source="NVIDIA DGX B200 datasheet, an eighth"),
}


def peaks_of(device_name: str) -> Peaks | None:
    """Return the peaks of a device by the driver's name, such as ``NVIDIA H200``; None if it is not listed.

    A MIG slice has an unknown part of its GPU's units, so it counts as not listed.
    """
    if "MIG" in device_name:
        return None
    return next((peaks for pattern, peaks in _TABLE.items() if re.search(pattern, device_name)), None)


def known_gpus() -> tuple[str, ...]:
    """Return the names of the products that are listed."""
    return tuple(peaks.gpu for peaks in _TABLE.values())

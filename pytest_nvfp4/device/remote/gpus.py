"""Compute capabilities of GPUs, by the names that providers rent them under.

Source: NVIDIA's table "CUDA GPU Compute Capability".

A machine must have the capability of the GPU that was asked for: what it returns is refused otherwise.
"""

from __future__ import annotations

import re

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.options import RemoteOptions

_NAMES = {
    (12, 0): "RTX-PRO-6000 RTX-5090",
    (10, 3): "B300 GB300",
    (10, 0): "B200 GB200 B100",
    (9, 0): "H200 H100 GH200 H800 H20",
    (8, 9): "L40S L40 L4 RTX-4090 RTX-6000-ADA",
    (8, 6): "A10 A10G A40 RTX-A6000 RTX-3090",
    (8, 0): "A100 A100-40GB A100-80GB A800 A30",
    (7, 5): "T4",
    (7, 0): "V100",
}
_CAPABILITIES = {name: capability for capability, names in _NAMES.items() for name in names.split()}
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


def capability_of(options: RemoteOptions) -> tuple[int, int]:
    """Return the compute capability that the GPU of a remote must have. Raises RemoteError for an unknown GPU."""
    if options.gpu_capability is not None:
        if (given := _CAPABILITY.fullmatch(options.gpu_capability)) is None:
            problem = f"--nvfp4-gpu-capability {options.gpu_capability!r} is no compute capability"
            raise RemoteError("setup", problem, "write it as 10.0")
        return int(given[1]), int(given[2])
    # "H100!" is Modal's name for an H100 that is never replaced by an H200; "B200:2" are two of them.
    name = options.gpu.upper().partition(":")[0].removesuffix("!")
    if name not in _CAPABILITIES:
        raise RemoteError(
            "setup",
            f"the compute capability of the GPU {options.gpu!r} is not known, so another one could pass for it",
            f"give it with --nvfp4-gpu-capability, such as 10.0, or name one of {', '.join(_CAPABILITIES)}",
        )
    return _CAPABILITIES[name]

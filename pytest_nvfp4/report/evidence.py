"""What checks have found of a kernel that its section of the HTML report draws."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.toolchain.trace import Trace


class Measured(BaseModel):
    """A measured time of one call: the device, the median, and the 10th and 90th percentile, in microseconds."""

    device: str
    us: float
    p10_us: float
    p90_us: float


class Evidence(BaseModel):
    """What one check has found. Texts in it are untrusted.

    Attributes:
        configuration: Name of the kernel's configuration; empty for the only one.
        arch: Architecture.
        path: The kernel's file.
        base: Folder that source files are relative to; empty if unknown.
        problem: Name of the problem of ``call``, ``modelled`` and ``measured``.
        flops, bytes: Work of the problem: operations, and bytes with each input read and output written once.
        trace: What compiling the kernel shows.
        call: One call in the simulator.
        modelled: The modelled time of one call.
        measured: The measured time of one call.
    """

    model_config = ConfigDict(frozen=True)

    configuration: str = ""
    arch: str = ""
    path: str = ""
    base: str = ""
    problem: str = ""
    flops: int = 0
    bytes: int = 0
    trace: Trace | None = None
    call: SimulatedCall | None = None
    modelled: ModelledCall | None = None
    measured: Measured | None = None

"""A kernel file that was traced, and simulations of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import CopyCompiled, SimDevice
from pytest_nvfp4.device.simulate import SimulationResult, simulate
from pytest_nvfp4.problem import GPUMODE, parse_shape
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.tracer import Tracer

KERNEL = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr


@cute.kernel
def talk(c: cute.Pointer, number: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    if lane == 0:
        cute.printf("number %d", number + 7)


@cute.jit
def go(c: cute.Pointer, number: cutlass.Int32):
    talk(c, number).launch(grid=(1, 1, 1), block=(32, 1, 1))


def custom_kernel(data):
    abc, _, _, sizes = data
    pointer = make_ptr(cutlass.Float16, abc[0][2].data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    cute.compile(go, pointer, cutlass.Int32(0))(pointer, cutlass.Int32(sizes[0][0]))
    return [c for _, _, c in abc]
"""


class Traced:
    """A kernel file that was traced, and jobs that simulate it."""

    def __init__(self, folder: Path) -> None:
        self.kernel = folder / "kernel.py"
        self.kernel.write_text(KERNEL)
        self.folder = folder
        self.cache = TraceCache(folder / "cache")
        self.retrace()

    def retrace(self) -> None:
        """Trace the kernel with a new tracer."""
        self.tracer = Tracer(root=self.folder, cache=self.cache)
        self.trace = self.tracer.trace(TraceRequest(self.kernel, GPUMODE[0]))
        assert self.trace.ok, self.trace.findings

    def copy(self, kernel: KernelSpec, base: Path, into: Path) -> bool:
        files = {str(base / file.path): file.sha256 for file in kernel.files}
        return self.tracer.copy_compiled(files, arch=kernel.arch, options=kernel.compile_options, into=into)

    def simulate(self, kernel: Path, copy: CopyCompiled | None = None) -> SimulationResult:
        spec, base = KernelSpec.from_files(kernel, arch="sm_100a")
        case = JobCase(problem=ProblemSpec.of(parse_shape("5x128x256")), family="gpumode")
        (done,) = simulate(SimDevice(compiled=copy or self.copy), spec, [case], folder=self.folder / "jobs", base=base)
        assert done.call is not None, done.findings
        return done

    def printed(self, kernel: Path, copy: CopyCompiled | None = None) -> str:
        call: Any = self.simulate(kernel, copy).call
        return str(call.launches[0].printed)

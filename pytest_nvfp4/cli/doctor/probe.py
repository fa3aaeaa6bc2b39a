"""Compile a small kernel for Blackwell as every other command does: in a worker, without a device."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.cli.doctor.model import Item, State
from pytest_nvfp4.problem import GPUMODE
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, Entry, TraceRequest
from pytest_nvfp4.toolchain.tracer import Limits, Tracer

# It allocates TMEM, which only the sm_100 family has, so that a DSL that ignores the architecture fails.
KERNEL = '''"""A kernel that allocates TMEM and frees it."""

import cutlass
import cutlass.cute as cute

COLUMNS = 32


@cute.kernel
def probe():
    address = cute.arch.alloc_smem(cutlass.Int32, 1)
    cute.arch.alloc_tmem(COLUMNS, address)
    cute.arch.sync_threads()
    tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, address)
    cute.arch.relinquish_tmem_alloc_permit()
    cute.arch.dealloc_tmem(tmem, COLUMNS)


@cute.jit
def launch():
    probe().launch(grid=(1, 1, 1), block=(32, 1, 1))


def build():
    return cute.compile(launch)
'''
_TIMEOUT_S = 120.0


def compile_here(arch: str) -> Item:
    """Compile for ``arch``, and return whether it worked, its time and its artifacts."""
    with temporary_folder("doctor") as folder:
        root = Path(folder).resolve()
        file = root / "probe.py"
        file.write_text(KERNEL, encoding="utf-8")
        tracer = Tracer(root=root, cache=TraceCache(root / "cache"), limits=Limits(deadline_s=_TIMEOUT_S))
        request = TraceRequest(kernel=file, problem=GPUMODE[0], entry=Entry(file, "build"), arch=arch)
        trace = tracer.trace(request)
        name = f"compile for {arch}"
        if not trace.ok:
            message = "; ".join(" ".join(finding.message.split()) for finding in trace.errors)
            return Item("compile", name, State.FAILED, message, f"pip install --force-reinstall {DSL_DISTRIBUTION}")
        targets = [path.read_text(encoding="utf-8", errors="replace") for path in trace.artifact_paths("ptx")]
        if not any(f".target {arch}" in " ".join(text.split()) for text in targets):
            return Item(
                "compile", name, State.FAILED, f"the PTX is not for {arch}", f"pip install -U {DSL_DISTRIBUTION}"
            )
        made = ", ".join(kind for kind in ("ptx", "cubin", "sass") if trace.artifact_paths(kind))
        return Item("compile", name, State.OK, f"{made} in {trace.seconds:.1f} s with CuTe DSL {trace.dsl_version}")

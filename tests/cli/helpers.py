"""Kernels to compile, ways to run the command, and traces made of nothing."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_nvfp4.cli.subject import Subject
from pytest_nvfp4.cli.tracing import Traced
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import GPUMODE
from pytest_nvfp4.settings import KernelSettings
from pytest_nvfp4.toolchain.request import Entry, TraceRequest
from pytest_nvfp4.toolchain.trace import Code, LaunchFact, Trace, Value

ROOT = Path(__file__).parents[2]

# Small enough to compile in a second: no torch, one shared-memory tile, copied out by a tiled copy.
KERNEL = '''"""A small kernel."""

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr

ROWS, COLUMNS = 128, 64


@cute.kernel
def kernel(c: cute.Pointer, n: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    mC = cute.make_tensor(c, cute.make_layout((ROWS, COLUMNS), stride=(cute.assume(n, COLUMNS), 1)))
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cutlass.Float16, num_bits_per_copy=128)
    copy = cute.make_tiled_copy_tv(atom, THREADS, cute.make_layout((1, 8)))
    sC = cutlass.utils.SmemAllocator().allocate_tensor(
        cutlass.Float16, cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1)), byte_alignment=1024
    )
    tCsC = copy.get_slice(thread).partition_S(sC)
    tCgC = copy.get_slice(thread).partition_D(mC)
    cute.copy(copy, tCsC, tCgC)


@cute.jit
def host(c: cute.Pointer, n: cutlass.Int32):
    kernel(c, n).launch(grid=(4, 1, 1), block=(128, 1, 1), smem=ROWS * COLUMNS * 2)


def build():
    pointer = make_ptr(cutlass.Float16, 0, cute.AddressSpace.gmem, assumed_align=16)
    compiled = cute.compile(host, pointer, cutlass.Int32(COLUMNS))
    compiled(pointer, cutlass.Int32(COLUMNS))
    return compiled
'''
ROW_MAJOR = KERNEL.replace("THREADS,", "cute.make_ordered_layout((16, 8), order=(1, 0)),")
"""Eight neighbouring lanes copy one row of 128 bytes."""
COLUMN_MAJOR = KERNEL.replace("THREADS,", "cute.make_layout((128, 1)),")
"""Every lane copies 16 bytes of a row of its own."""
SKEWED = ROW_MAJOR.replace("stride=(COLUMNS, 1)), byte", "stride=(COLUMNS + 8, 1)), byte")
"""The rows of ``sC`` are 8 elements further apart."""
PADDED = ROW_MAJOR.replace("smem=ROWS * COLUMNS * 2", "smem=ROWS * COLUMNS * 2 + 1024")
"""The launch asks for more shared memory; layouts are the same."""


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_process(*arguments: str, cwd: Path | None = None, **environ: str) -> Result:
    """Run the command as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_nvfp4.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def git(*arguments: str, cwd: Path) -> str:
    """Run git as a user without any configuration."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )
    return done.stdout.strip()


def traced(
    kernel: Path,
    values: dict[str, str],
    *,
    errors: tuple[str, ...] = (),
    registers: int = 40,
    dsl: str = "4.8.1",
    settings: KernelSettings | None = None,
    folder: Path | None = None,
) -> Traced:
    """A trace of these values, without a compile."""
    request = TraceRequest(kernel=kernel, problem=GPUMODE[0], entry=Entry(kernel, "build"))
    subject = Subject(kernel.name, kernel.parent, settings or KernelSettings(), request, 300.0)
    found = Trace(
        kernel=str(kernel),
        entry=f"{kernel.name}::build",
        problem="gpumode-0",
        problem_sizes=tuple(GPUMODE[0].sizes),
        arch="sm_100a",
        options=(),
        dsl_version=dsl,
        python="3.11.7",
        ok=not errors,
        values=tuple(
            Value(name=name, type=text, file=str(kernel), line=at) for at, (name, text) in enumerate(values.items(), 10)
        ),
        launches=(
            LaunchFact(
                problem="gpumode-0",
                kernel="kernel_cutlass_kernel_0",
                grid=(4, 1, 1),
                block=(128, 1, 1),
                cluster=(1, 1, 1),
                smem_bytes=16384,
                cooperative=False,
                pdl=False,
                parameter_bytes=(8, 4),
                tensormaps=(),
            ),
        ),
        launch_count=1,
        code=(
            Code(
                symbol="kernel_cutlass_kernel_0",
                source_name="kernel",
                registers=registers,
                stack_bytes=0,
                local_bytes=0,
                spill_stores=0,
                spill_loads=0,
                static_smem_bytes=0,
                tmem_columns=(256,),
                max_threads=128,
                ptx_mix={"st.global.v4": 4, "add": 7},
                sass_mix={"STG": 4},
            ),
        ),
        artifacts=(),
        findings=tuple(Finding(kind="compile", message=text, file=str(kernel), line=3) for text in errors),
        dependencies={},
        stages={"compile": 0.5},
        seconds=1.5,
        folder=str(folder) if folder else None,
    )
    return Traced(subject, found)


def relabelled(one: Traced, label: str) -> Traced:
    """The same trace under another name."""
    return replace(one, subject=replace(one.subject, label=label))

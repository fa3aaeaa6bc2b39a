"""Run a job in a worker process."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_nvfp4 import isolation
from pytest_nvfp4.activity import ACTIVITIES
from pytest_nvfp4.device.assemble import assemble, source_names
from pytest_nvfp4.device.dialogue import Dialogue
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.device.worker.kernel_stack import stack_below
from pytest_nvfp4.device.worker.tool_launch import INNER_WALL_VARIABLE
from pytest_nvfp4.host.compile_cache import COMPILED_VARIABLE
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.environment import NO_GPU, UNATTENDED
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import WALL_VARIABLE, Wall
from pytest_nvfp4.toolchain.bytecode import write_missing
from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE, default_root
from pytest_nvfp4.toolchain.preload import PRELOAD

_WORKER = "pytest_nvfp4.device.worker.__main__"
_PROFILE_WORKER = "pytest_nvfp4.device.worker.profile_worker"
_TOOL_LAUNCH = "pytest_nvfp4.device.worker.tool_launch"
_PRELOAD = (
    *PRELOAD,
    "numpy.ma",  # which numpy imports when it is first used
    "pytest_nvfp4.device.job",
    "pytest_nvfp4.isolation.seal.audit",
    "pytest_nvfp4.device.worker.device_info",
    "pytest_nvfp4.device.worker.far_end",
    "pytest_nvfp4.device.worker.kernel_process",
    "pytest_nvfp4.device.worker.kernel_side",
    "pytest_nvfp4.device.worker.machine_worker",
    "pytest_nvfp4.device.worker.simulation",
    "pytest_nvfp4.device.worker.simulator",
    "pytest_nvfp4.device.worker.tamper",
    "pytest_nvfp4.isolation.seal.keeper",
    "pytest_nvfp4.device.worker.verify",
    "pytest_nvfp4.host.remote",
    "pytest_nvfp4.numerics.families",
    *(f"pytest_nvfp4.sim.{unit}.table" for unit in ("alu", "memory", "sync", "tcgen05", "tma", "wgmma")),
    "pytest_nvfp4.sim.lower.ganged",
)
"""Modules that a worker imports before its kernel. A worker for a GPU is not forked: CUDA does not survive a fork."""
_FILE_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class Profiler:
    """A tool that starts the worker: its command without the program, and folders of its libraries."""

    command: tuple[str, ...]
    readable: tuple[str, ...] = ()


def run_in_worker(
    job: Job, *, backend: str, folder: Path, base: Path | None = None, environ: dict[str, str] | None = None,
    dialogue: Dialogue | None = None,
) -> Result:  # fmt: skip
    """Run a job in a process of its own.

    Args:
        backend: The worker's device: ``cuda``, ``host`` or ``sim``.
        folder: A new, empty folder for the files that the result names.
        base: The user's folder that the kernel's files are relative to.
        dialogue: Who gives commands to the debugger, in a job that has one.
    """
    if job.action == "trace":
        from pytest_nvfp4.device.tracing import run_trace

        return run_trace(job, folder)
    result, _ = run_below(job, None, backend=backend, folder=folder, base=base, environ=environ, dialogue=dialogue)
    return result


def run_below(
    job: Job,
    profiler: Profiler | None,
    *,
    backend: str,
    folder: Path,
    base: Path | None = None,
    environ: dict[str, str] | None = None,
    dialogue: Dialogue | None = None,
) -> tuple[Result, Outcome]:
    """Run a job as ``run_in_worker`` does, below a profiler if there is one; return also how the process ended."""
    path = folder / "job.json"
    path.write_text(job.model_dump_json(), encoding="utf-8")
    scratch = folder / "scratch"
    scratch.mkdir()
    variables = {**UNATTENDED, "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
    variables[CACHE_VARIABLE] = str(default_root())  # which the worker, with another home directory, cannot find
    if backend != "cuda":
        variables |= NO_GPU
    if job.kernel is not None:
        variables["CUTE_DSL_ARCH"] = job.kernel.arch
    compiled = filter(None, (environ or {}).get(COMPILED_VARIABLE, "").split(os.pathsep))
    import_path = os.pathsep.join(entry for entry in sys.path if entry and Path(entry).exists())
    write_missing(Path(sys.executable))
    names = source_names(job, folder, base) if base is not None else {}
    # Messages quote the lines that the line table of a reused module names: those of the user's own files.
    own = [file for file in names.values() if Path(file).is_file()]
    wall = Wall(
        folder=str(scratch),
        readable=(*compiled, *own, *(job.kernel.readable if job.kernel is not None else ())),
        writable=(str(folder),),
        gpu=backend == "cuda",
        network=job.kernel is not None and job.kernel.network,
        memory_bytes=job.memory_bytes,
        file_bytes=_FILE_BYTES,
    )
    if profiler is None:
        command = worker(_WORKER, path, folder, backend, preload=_PRELOAD if backend != "cuda" else ())
    else:
        inner = replace(wall, profiler=True, readable=(*wall.readable, *profiler.readable))
        variables["CUTE_DSL_LINEINFO"] = "1"  # a line table, which changes no instruction, for the tool's source lines
        variables[INNER_WALL_VARIABLE] = inner.variables[WALL_VARIABLE]
        below = [*profiler.command, *worker(_PROFILE_WORKER, path, folder, backend).command]
        command = worker(_TOOL_LAUNCH, json.dumps(below))
        wall = Wall(folder=str(scratch), mode="off")
    with ACTIVITIES.doing(_description(job)):
        outcome = isolation.run(
            command,
            cwd=scratch,
            deadline_s=job.deadline_s,
            environ={**variables, **(environ or {}), "PYTHONPATH": import_path},
            wall=wall,
            stdin=None if dialogue is None else dialogue.stdin,
            on_result=None if dialogue is None else dialogue.received,
        )
    kept, by_tool = backend != "sim" and profiler is None, profiler is not None
    return assemble(job, outcome, source_names=names, stack=stack_below(scratch), kept=kept, by_tool=by_tool), outcome


def _description(job: Job) -> str:
    kernel = Path(job.kernel.main).name if job.kernel is not None else "device"
    problems = dict.fromkeys(case.problem.name for case in job.cases)
    return f"{kernel}: {job.action} {', '.join(problems)}".rstrip()

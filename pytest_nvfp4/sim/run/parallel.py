"""Distribution of a large launch over forked processes.

CTAs that communicate through global memory (atomics, flags) stay in one process. Others are distributed round robin.
The processes share device memory, so the parent sees what every CTA writes; counters, findings and printed text are
returned over a pipe. If the parent has a timer, a process whose CTAs have not ended shortly before that ends them with
the place of its warps, which the parent cannot see.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from pytest_nvfp4.collection import rare_collection
from pytest_nvfp4.numerics import blas
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.roles import is_strong
from pytest_nvfp4.sim.ptx.syntax import Kernel
from pytest_nvfp4.sim.run.grid import Grid

_WORTH_S = 0.5
"""Remaining work in seconds of CPU time, estimated from the first clusters, above which a fork pays off.

A fork copies pages and sends results: verifying nvfp4_group_gemm/sm100.py on gpumode-8 took 2 s of CPU time more with
it, of 21 (measured once, on busy cores, when results were larger than now). By the clock, a busy machine would share
the smallest launch.
"""
_SHARE_OF_TIME = 0.9
"""Share of the parent's time after which a process ends its CTAs."""
_AGAIN_S = 0.1
"""Seconds until it tries again, if no CTA ran."""
_ended: list[int] = []
"""Processes that have sent their results, and free their memory while this one goes on (20 ms for a large launch)."""
_OWN_SPACES = frozenset({"shared", "shared::cta", "shared::cluster", "param", "local"})


def communicates(kernel: Kernel) -> bool:
    """Return whether clusters may communicate: through atomics, or volatile or ordered accesses to global memory."""
    for instruction in kernel.instructions:
        parts = set(instruction.parts)
        if instruction.root in ("atom", "red") and not parts & {"shared", "shared::cta", "shared::cluster"}:
            return True
        if is_strong(instruction) and not parts & _OWN_SPACES:
            return True
        if instruction.root == "clusterlaunchcontrol":
            return True
        if instruction.opcode.startswith("cp.reduce.async.bulk") and instruction.has("global"):
            return True
    return False


def run_grid(grid: Grid, *, processes: int) -> None:
    """Run a grid, in several processes if that pays off. Raises the Fault of the first CTA in grid order.

    numpy's matrix products use one thread meanwhile: their threads would compete with the other processes.
    """
    with blas.one_thread(), rare_collection():
        grid.processes = processes
        run_selected(grid)
        grid.finish()


def run_selected(grid: Grid) -> None:
    """Run the selected clusters of a grid (``Grid.select``), in several processes if that pays off. Raises Fault."""
    processes = grid.processes
    if processes < 2 or grid.clusters_left < 2 * processes or communicates(grid.kernel) or not hasattr(os, "fork"):
        grid.run_part()
        return
    numbers = grid.numbers
    total = len(numbers)
    started = time.process_time()
    done = 0
    while done < total:
        grid.limit_to(numbers[done : done + 1])
        grid.run_part()
        done += 1
        if (time.process_time() - started) / done * (total - done) > _WORTH_S:
            break
    if done < total:
        _share(grid, numbers[done:], processes)


def _share(grid: Grid, rest: Sequence[int], processes: int) -> None:
    while _ended:
        with contextlib.suppress(ChildProcessError):  # a fork of the process that started it
            os.waitpid(_ended.pop(), 0)
    children: list[tuple[int, Connection]] = []
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    try:
        for worker in range(1, processes):
            reader, writer = multiprocessing.Pipe(duplex=False)
            child = os.fork()
            if child == 0:
                reader.close()
                _child(grid, rest[worker::processes], writer, left)
            writer.close()
            children.append((child, reader))
        error: BaseException | None = None
        grid.sharing = processes
        grid.limit_to(rest[0::processes])
        try:
            grid.run_part()
        except Fault as fault:
            error = fault
        for child, reader in children:
            answer = None
            with contextlib.suppress(EOFError, OSError):
                # Unpickling is safe: the writer is a fork of this process and sends this package's own data.
                answer = reader.recv()
            reader.close()
            _ended.append(child)
            if answer is None:
                error = error or Fault("internal", "a process that simulated some of the CTAs ended without a result")
                continue
            error = _first(error, grid.absorb(answer))
        children.clear()
        if error is not None:
            raise error
    finally:
        for child, reader in children:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(child, 0)
            reader.close()


def _first(one: BaseException | None, other: Fault | None) -> BaseException | None:
    """Return the fault of the earlier CTA, so that the result does not depend on the speed of the processes."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Fault) and one.where and other.where and one.where.cta and other.where.cta:
        return one if one.where.cta[::-1] <= other.where.cta[::-1] else other
    return one


def _child(grid: Grid, clusters: Sequence[int], writer: Connection, left: float) -> None:
    # os._exit skips exit handlers and the flush of buffers that belong to the parent.
    code = 1
    try:
        if left:  # seconds until the parent's timer expires
            signal.signal(signal.SIGALRM, lambda *_: _end(grid))
            signal.setitimer(signal.ITIMER_REAL, _SHARE_OF_TIME * left, _AGAIN_S)
        grid.begin_part()
        grid.on_cluster = None
        grid.limit_to(clusters)
        fault: Fault | None = None
        try:
            grid.run_part()
        except Fault as error:
            fault = error
        signal.setitimer(signal.ITIMER_REAL, 0)
        writer.send(grid.part(fault))
        code = 0
    finally:
        os._exit(code)


def _end(grid: Grid) -> None:
    """End the CTAs of this process, in a signal handler, if any runs. Raises Fault."""
    if (fault := grid.unended()) is not None:
        raise fault

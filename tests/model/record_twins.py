"""Records the twins and writes the recordings that the validation replays.

``python -m tests.model.record_twins [NAME ...]``: a name is that of a file in ``data/recordings`` without its ending.
All are recorded if none is named, which takes half an hour. Which points these are is decided by ``points``.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.problem import GPUMODE_BENCH, Problem
from tests.model.kernels.group_gemm.versions import VERSIONS, constants_of, write_version
from tests.model.tables import DATA, rows

__all__ = ["RECORDINGS", "points", "record"]

RECORDINGS: Final = DATA / "recordings"
PROBLEMS: Final = {problem.name: problem for problem in GPUMODE_BENCH}
GEMMS_OF_A_TYPE: Final = 8
MAIN_LOOPS: Final = 16
MOST_FLOP: Final = 35e9
"""Of the persistent GEMMs that are recorded: a simulation takes about a second for each GFLOP."""
CLUSTERS: Final = {1: 74, 2: 33}
"""Clusters at once, by their CTAs along N (``devices/b200.toml``)."""
SHORT, LONG = 3, 7
"""Times that a recorded main loop goes around its ring; the rest of it follows from the difference."""
GEMM_FIELDS: Final = ("in_dtype", "mma_m", "mma_n", "cluster_n", "m", "n", "k")
LOOP_FIELDS: Final = ("dtype", "n", "tile_k", "stages")
DEADLINE_S: Final = 1800.0


def first_by_hash(candidates: Iterable[str], count: int) -> list[str]:
    """A choice that does not depend on any result."""
    return sorted(candidates, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:count]


def points() -> list[str]:
    """Names of the recordings: all grouped GEMMs, some persistent GEMMs of each type, and some main loops."""
    names = [f"group_{version}_{problem}" for version in VERSIONS for problem in PROBLEMS]
    gemms: dict[str, list[str]] = {}
    for row in rows("b200_gemm_open.csv"):
        if 2 * int(row["m"]) * int(row["n"]) * int(row["k"]) <= MOST_FLOP:
            gemms.setdefault(row["in_dtype"], []).append("_".join(["gemm", *(row[name] for name in GEMM_FIELDS)]))
    for of_a_type in gemms.values():
        names += first_by_hash(of_a_type, GEMMS_OF_A_TYPE)
    loops = ("_".join(["loop", *(row[name] for name in LOOP_FIELDS)]) for row in rows("b200_mainloop.csv") if fits(row))
    return names + first_by_hash(loops, MAIN_LOOPS)


def fits(row: dict[str, str]) -> bool:
    """Whether shared memory holds a main loop's stages and the twin's two subtiles of C."""
    n, tile_k, stages = (int(row[name]) for name in LOOP_FIELDS[1:])
    element = 2 if row["dtype"] == "bf16" else 1
    return element * ((128 + n) * tile_k * stages + 2 * min(128 * n, 4096)) <= 226 * 1024


def record_version(version: str, problem: Problem, folder: Path) -> bytes:
    """Return the recording of a version's launch on a problem. Raises RuntimeError if it has findings."""
    from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
    from pytest_nvfp4.device.sim import SimDevice
    from pytest_nvfp4.device.simulate import simulate

    path = write_version(version, folder, constants_of(version, problem))
    spec, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(problem), family="gpumode")
    (done,) = simulate(
        SimDevice(), spec, [case], folder=folder / "jobs", base=base, recording=True, deadline_s=DEADLINE_S
    )
    if done.status != "passed" or done.recording is None:
        raise RuntimeError(f"{version} on {problem.name}: {done.status} {done.findings}")
    return done.recording


def record_gemms(gemm: Any, sizes: Iterable[tuple[int, int, int]], clusters: int) -> bytes:
    """Return the recordings of a plain GEMM's launches on problems (m, n, k); this process has the environment."""
    import torch

    from pytest_nvfp4.device.worker.simulator import simulate
    from pytest_nvfp4.model.recorder_dataless import DatalessRecorder
    from pytest_nvfp4.model.storage import dumps
    from tests.model.kernels import gemm_inputs

    with simulate(arch="sm_100a") as session:
        launch = gemm_inputs.compile_gemm(gemm)
        session.machine.monitor = recorder = DatalessRecorder()
        for m, n, k in sizes:
            c = torch.empty((m, n), dtype=gemm_inputs.TORCH[gemm.c_type], device="cuda")
            launch(gemm_inputs.room(gemm.kind, m, n, k), c, m, n, k, clusters)
        if session.findings:
            raise RuntimeError(f"{session.findings}")
        return dumps(recorder.recordings(below=str(Path(__file__).parent)))


def record(name: str) -> bytes:
    """Return the recordings of a point."""
    what, *fields = name.split("_")
    if what == "group":
        with tempfile.TemporaryDirectory() as folder:
            return record_version(fields[0], PROBLEMS[fields[1]], Path(folder))
    from tests.model.kernels.persistent_gemm import PersistentGemm

    kind, *numbers = fields
    if what == "gemm":
        mma_m, mma_n, cluster_n, *sizes = map(int, numbers)
        gemm = PersistentGemm(kind, (mma_m, mma_n), (2, cluster_n))
        return record_gemms(gemm, [padded(gemm, *sizes)], CLUSTERS[cluster_n])
    n, tile_k, stages = map(int, numbers)
    loop = PersistentGemm(kind, (128, n), (1, 1), two_cta=False, tile_k=tile_k, stages=stages)
    return record_gemms(loop, [(128, n, stages * tile_k * times) for times in (SHORT, LONG)], 1)


def padded(gemm: Any, m: int, n: int, k: int) -> tuple[int, int, int]:
    """A problem whose rows are padded to 16 bytes, which TMA demands."""
    k_multiple, n_multiple = 128 // gemm.type.width, 128 // gemm.c_type.width
    return m, -(-n // n_multiple) * n_multiple, -(-k // k_multiple) * k_multiple


def main() -> None:
    """Record those that are named, or all."""
    with tempfile.TemporaryDirectory() as folder:
        from pytest_nvfp4.host import redirect

        os.environ.update(redirect.environment(Path(folder), arch="sm_100a"))
        RECORDINGS.mkdir(exist_ok=True)
        for name in sys.argv[1:] or points():
            recorded = record(name)
            (RECORDINGS / f"{name}.npz").write_bytes(recorded)
            print(f"{name}: {len(recorded)} bytes", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

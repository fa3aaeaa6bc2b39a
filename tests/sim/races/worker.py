"""Runs the table of seeded defects, in a process of its own because the DSL reads its environment when it is imported.

``python -m tests.sim.races.worker FOLDER [TARGET...]`` prints a line of JSON for each program: ``SEED {...}``. The
original of each target comes first, with an empty name.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host import redirect
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Late
from tests.sim.mutants.mutate import Listing
from tests.sim.races.rerun import Again, Outcome, reruns
from tests.sim.races.seed import places
from tests.sim.races.seeds import SEEDS

_EARLY = ("uninitialised", "in-flight")
_ABOUT = ("race", "proxy", "tensormap")
_KERNEL = Path(__file__).parents[3] / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"


def _diagnose(again: Again, ptx: str | None) -> tuple[Outcome, str]:
    """What the ``races`` check does: the eager schedule, and where a warp reads too early, one in which it is late."""
    first = outcome = again.run(ptx, detector=Detector())
    late: list[int] = []
    while not any(f.kind in (*_ABOUT, "deadlock") for f in outcome.all):
        early = next((f for f in outcome.all if f.kind in _EARLY and f.where and f.where.warp is not None), None)
        if early is None or early.where is None or early.where.warp in late:
            return first, "eager"
        late.append(early.where.warp)  # type: ignore[arg-type]
        outcome = again.run(ptx, detector=Detector(), asynchronous=Late(late))
    return outcome, "late-" + "-".join(map(str, late)) if late else "eager"


def _told(finding: Finding, files: dict[str, str]) -> dict[str, Any]:
    def line(file: str, number: int) -> str:
        return linecache.getline(files.get(file, file), number).strip()

    source = finding.where.source if finding.where is not None else None
    return {
        "kind": finding.kind,
        "message": finding.message,
        "notes": list(finding.notes),
        "lines": places({"message": finding.message}, line),
        "at": linecache.getline(source.file, source.line).strip() if source is not None else "",
    }


class _Target:
    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False

    def __call__(self, again: Again) -> None:
        if self.done:
            return
        self.done = True
        ptx = again.launch.module.ptx
        assert ptx is not None
        listing = Listing(ptx, again.launch.kernel)
        files = {
            site.instruction.location.file.rsplit("/", 1)[-1]: site.instruction.location.file
            for site in listing.sites
            if site.instruction.location is not None
        }
        self._say("", *_diagnose(again, None), files)
        for seed in SEEDS:
            if seed.target == self.name:
                try:
                    text = seed.ptx(listing)
                except Exception:
                    print("SEED " + json.dumps({"name": seed.name, "error": traceback.format_exc()}), flush=True)  # noqa: T201
                    continue
                self._say(seed.name, *_diagnose(again, text), files)

    def _say(self, name: str, outcome: Outcome, schedule: str, files: dict[str, str]) -> None:
        told = [_told(finding, files) for finding in outcome.all]
        said = {"target": self.name, "name": name, "schedule": schedule, "findings": told}
        print("SEED " + json.dumps(said), flush=True)  # noqa: T201


def _feature(name: str) -> None:
    from pytest_nvfp4.device.worker.simulator import simulate
    from tests.sim.features import catalogue

    feature = catalogue.load()[name]
    with simulate(arch="sm_100a"):
        feature.run(feature.kernel_inputs(20))


def _map_updates(folder: Path) -> None:
    import torch

    from pytest_nvfp4.device.worker.buffers import CallBuffers
    from pytest_nvfp4.device.worker.memory import HostMemory
    from pytest_nvfp4.device.worker.simulation import Simulation
    from pytest_nvfp4.device.worker.simulator import simulate
    from pytest_nvfp4.numerics.families import family
    from pytest_nvfp4.problem import Group, Problem
    from pytest_nvfp4.toolchain.worker import contract
    from pytest_nvfp4.toolchain.worker.loading import load

    stack = contextlib.ExitStack()
    simulation = Simulation(stack.enter_context(simulate()), folder=folder)
    contract.provide_task()
    module = load(_KERNEL)
    # Ragged, k of 4 and 7 tiles: both wrap the ring of stages.
    inputs = family("gpumode").generate(Problem("races", (Group(200, 128, 1024), Group(72, 256, 1792)), seed=7))
    slot = CallBuffers(torch, inputs)
    slot.fill(HostMemory(), inputs)
    (data,), _ = slot.arguments()
    if hasattr(module, "compile_kernel"):
        contract.prepare(module.compile_kernel, inputs.problem.sizes)
    with simulation.call(slot, []):
        module.custom_kernel(data)
    stack.close()


def main() -> None:
    """Run what the command line names, or everything."""
    folder = Path(sys.argv[1])
    os.environ.update(redirect.environment(folder, arch="sm_100a"))
    for name in sys.argv[2:] or dict.fromkeys(seed.target for seed in SEEDS):
        with reruns(_Target(name)):
            if name == "map_updates":
                _map_updates(folder)
            else:
                _feature(name)


if __name__ == "__main__":
    main()

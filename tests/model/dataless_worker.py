"""Records kernels with and without data, in a process of its own: JSON, one line a kernel.

``python -m tests.model.dataless_worker FOLDER`` records the first step and the twins of published grouped GEMMs,
with A, B and C unknown in the second recording.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.host import redirect
from pytest_nvfp4.problem import parse_shape
from tests.model.kernels.group_gemm.versions import VERSIONS, write_version

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.session import Session

SHIPPED = Path(__file__).parents[2] / "kernels/nvfp4_group_gemm/steps/map_updates.py"
SHAPE = parse_shape("72x128x512,200x128x256")
FEW: dict[str, dict[str, int]] = {"v1c": {}, "v2e": {"MOST_CTAS": 2}, "v5e": {"SMS": 4}, "v6b": {"SMS": 4}}
"""Constants with which a CTA has several tiles of the problem."""


def recorded_twice(
    session: Session, call: Callable[[], object], unknown: frozenset[int] = frozenset()
) -> dict[str, Any]:
    """Record the launches of a call with and without data, and return whether the recordings are equal.

    ``unknown``: the addresses of memory that has no content in the second recording.
    """
    from pytest_nvfp4.model.recorder import Recorder
    from pytest_nvfp4.model.recorder_dataless import DatalessRecorder
    from tests.model.recorded_kernels import content

    made = []
    for kind in (Recorder, DatalessRecorder):
        session.machine.monitor = recorder = kind()
        for region in session.machine.memory:
            region.unknown = kind is DatalessRecorder and region.start in unknown
        call()
        made.append([content(each) for each in recorder.recordings()])
    whole, some = made
    return {"launches": len(whole), "alike": some == whole}


def contract(path: Path) -> dict[str, Any]:
    """Record a kernel under GPU MODE's contract."""
    import torch

    from pytest_nvfp4.device.worker.buffers import CallBuffers
    from pytest_nvfp4.device.worker.memory import HostMemory
    from pytest_nvfp4.device.worker.simulator import simulate
    from pytest_nvfp4.numerics.families import family
    from pytest_nvfp4.toolchain.worker import contract as task
    from pytest_nvfp4.toolchain.worker.loading import load

    with simulate(arch="sm_100a") as session:
        task.provide_task()
        module = load(path)
        inputs = family("gpumode").generate(SHAPE)
        slot = CallBuffers(torch, inputs)
        slot.fill(HostMemory(), inputs)
        unknown = frozenset(one.address for one in slot.buffers if one.tensor.blank or one.tensor.is_output)
        return recorded_twice(session, lambda: module.custom_kernel(*slot.arguments()[0]), unknown)


def main() -> None:
    (folder,) = sys.argv[1:]
    os.environ.update(redirect.environment(Path(folder), arch="sm_100a"))
    for name in ("map_updates", *VERSIONS):
        try:
            said = contract(SHIPPED if name == "map_updates" else write_version(name, Path(folder), FEW[name]))
        except Exception:  # a worker reports whatever ended a case
            said = {"error": traceback.format_exc()}
        print("KERNEL " + json.dumps({"name": name, **said}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

"""The small Hopper kernels with one line of their source changed, in a process of its own: JSON, one line a run.

``python -m tests.sim.races.hopper FOLDER`` runs them as they are, and then with each of EDITS, watched for races.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Random
from tests.kernels.sm90_worker import load
from tests.sim.races.rerun import Again, reruns

KERNELS = ("copy_transpose", "reduce_sum", "softmax_online")

EDITS: tuple[tuple[str, str, str, str], ...] = (
    # ---- barriers
    (
        "the barrier after mbarrier.init",
        "copy_transpose",
        "        cute.arch.mbarrier_init_fence()\n    cute.arch.barrier()\n",
        "        cute.arch.mbarrier_init_fence()\n",
    ),
    (
        "the barrier before the store",
        "copy_transpose",
        '    cute.arch.fence_proxy("async.shared", space="cta")\n    cute.arch.barrier()\n',
        '    cute.arch.fence_proxy("async.shared", space="cta")\n',
    ),
    ("the barrier of the CTA", "reduce_sum", "    cute.arch.barrier()\n", ""),
    ("the barrier of the CTA", "softmax_online", "    cute.arch.barrier()\n", ""),
    (
        "the second barrier of the cluster",
        "reduce_sum",
        "    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()\n",
        "",
    ),
    # ---- waits
    ("the wait for the load", "copy_transpose", "    cute.arch.mbarrier_wait(barrier, 0)\n", ""),
    (
        "the other warp's wait for the load",
        "copy_transpose",
        "    cute.arch.mbarrier_wait(barrier, 0)\n",
        "    if thread < 32:\n        cute.arch.mbarrier_wait(barrier, 0)\n",
    ),
    (
        "the second wait of the cluster",
        "reduce_sum",
        "    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()\n",
        "    cute.arch.cluster_arrive()\n",
    ),
    (
        "the wait for the store's reads",
        "copy_transpose",
        "            cute.arch.cp_async_bulk_wait_group(0, read=True)\n",
        "",
    ),
    # ---- orders and fences
    (
        "the release of the second arrive",
        "reduce_sum",
        "    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()\n",
        "    cute.arch.cluster_arrive_relaxed()\n    cute.arch.cluster_wait()\n",
    ),
    ("the proxy fence", "copy_transpose", '    cute.arch.fence_proxy("async.shared", space="cta")\n', ""),
    (
        "the order of fence and barrier",
        "copy_transpose",
        '    cute.arch.fence_proxy("async.shared", space="cta")\n    cute.arch.barrier()\n',
        '    cute.arch.barrier()\n    cute.arch.fence_proxy("async.shared", space="cta")\n',
    ),
    (
        "the bytes of the load",
        "copy_transpose",
        "mbarrier_arrive_and_expect_tx(barrier, tile * ROW)",
        "mbarrier_arrive_and_expect_tx(barrier, 0)",
    ),
)
"""What is taken away, the kernel, a part of its source and what stands there instead."""


def _lines(text: str, path: str) -> list[str]:
    from tests.sim.races.seed import _PLACE

    source = Path(path).read_text().splitlines()
    name = Path(path).name
    return [source[int(line) - 1].strip() for file, line in _PLACE.findall(text) if file == name]


def _call(name: str, module: Any) -> None:
    import torch

    if name == "copy_transpose":
        module.transpose(torch.randint(0, 1000, (72, 40), dtype=torch.int32).cuda())
    elif name == "reduce_sum":
        module.row_sums(torch.randn(3, 72).cuda())
    else:
        module.softmax(torch.randn(3, 72).cuda())


class _Watch:
    """Watches each launch, and says what is found of the program that is being run."""

    def __init__(self) -> None:
        self.kernel = self.without = self.file = ""
        self.schedules = 0

    def __call__(self, launch: Again) -> None:
        from tests.sim.races.worker import _diagnose

        outcome, schedule = _diagnose(launch, None)
        findings = outcome.all
        for seed in range(self.schedules):
            findings += launch.run(detector=Detector(), asynchronous=Random(seed)).all
        told = [{"kind": one.kind, "message": one.message, "lines": _lines(one.message, self.file)} for one in findings]
        said = {"kernel": self.kernel, "without": self.without, "schedule": schedule, "findings": told}
        print("RAN " + json.dumps(said), flush=True)  # noqa: T201

    def run(self, name: str, module: Any, *, without: str = "", schedules: int = 0) -> None:
        """Call a kernel; one with a defect may fail."""
        self.kernel, self.without, self.file, self.schedules = name, without, module.__file__, schedules
        try:
            _call(name, module)
        except Exception:
            if not without:
                raise


def main() -> None:
    """Run everything."""
    folder = Path(sys.argv[1])
    os.environ.update(redirect.environment(folder, arch="sm_90a"))
    from pytest_nvfp4.device.worker.simulator import simulate

    watch = _Watch()
    with reruns(watch), simulate(arch="sm_90a"):
        for name in KERNELS:
            watch.run(name, load(name, folder, None, 0), schedules=5)
        for number, (label, name, old, new) in enumerate(EDITS):
            watch.run(name, load(name, folder, (name, old, new), 100 + number), without=label)


if __name__ == "__main__":
    main()

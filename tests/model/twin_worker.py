"""Runs the GEMM twins in the simulator, in a process of its own: JSON, one line a case.

``python -m tests.model.twin_worker ARCH FOLDER`` runs the cases of an architecture on small whole numbers, with the
search for races on, and compares every element of C with exact arithmetic.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect

BLACKWELL: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, int, int], int]] = {
    # arguments of the kernel, (m, n, k), clusters at once
    "fp16 256x64, two tiles a cluster": (("fp16", (256, 64)), {}, (512, 128, 136), 2),
    "fp8 128x128, cluster 2x2, ragged": (("fp8", (128, 128), (2, 2)), {}, (200, 272, 272), 2),
    "e2m1 256x64, odd tiles": (("e2m1", (256, 64)), {}, (256, 192, 512), 1),
    "e2m1 256x192, ragged, odd tiles": (("e2m1", (256, 192)), {}, (256, 400, 288), 1),
    "e2m1 256x256, cluster 2x2": (("e2m1", (256, 256), (2, 2)), {}, (256, 512, 256), 1),
    "bf16 main loop": (("bf16", (128, 16), (1, 1)), {"two_cta": False, "tile_k": 16, "stages": 3}, (128, 16, 160), 1),
    "fp8 main loop": (("fp8", (128, 32), (1, 1)), {"two_cta": False, "tile_k": 256, "stages": 3}, (128, 32, 1024), 1),
}
HOPPER: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, int, int], int]] = {
    "fp16 128x128 cooperative, ragged": (("fp16", (128, 128, 64), 2), {}, (200, 136, 200), 1),
    "bf16 64x64 pingpong, cluster 2x1": (("bf16", (64, 64, 64), 3, (2, 1), "pingpong"), {}, (256, 192, 192), 1),
    "fp8 128x64 pingpong, cluster 1x2": (("fp8", (128, 64, 128), 2, (1, 2), "pingpong"), {}, (256, 256, 320), 1),
    "fp16 256x64 cooperative, cluster 2x1": (("fp16", (256, 64, 64), 2, (2, 1)), {}, (512, 128, 192), 1),
}


def main() -> None:
    arch, folder = sys.argv[1:]
    os.environ.update(redirect.environment(Path(folder), arch=arch))
    import torch

    from pytest_nvfp4.device.worker.simulator import simulate
    from tests.model.dataless_worker import recorded_twice
    from tests.model.kernels import gemm_inputs
    from tests.model.kernels.hopper_gemm import HopperGemm
    from tests.model.kernels.persistent_gemm import PersistentGemm

    def run(gemm: Any, sizes: tuple[int, int, int], clusters: int) -> dict[str, Any]:
        with simulate(arch=arch, races=True) as session:
            launch = gemm_inputs.compile_gemm(gemm)
            operands = gemm_inputs.draw(gemm.kind, *sizes)
            want = gemm_inputs.expected(gemm, operands)
            c = torch.full(want.shape, 7.0).to(want.dtype).cuda()
            device = operands.cuda()
            launch(device, c, *sizes, clusters)
            wrong = c.cpu().double() != want.double()
            # What the comparison would say of a kernel that leaves out one element of K.
            operands.a_values[-1, -1] += 1
            other = gemm_inputs.expected(gemm, operands).double() != want.double()
            findings = [str(finding) for finding in session.findings]
            launches = [[*record.launch.grid, *record.launch.cluster] for record in session.launches]
            memory = frozenset(region.start for region in session.machine.memory)
            recorded = recorded_twice(session, lambda: launch(device, c, *sizes, clusters), memory)
            return {
                "alike": recorded["alike"],
                "wrong": int(wrong.sum()),
                "told": bool(other.any()),
                "findings": findings,
                "launches": launches,
            }

    make, cases = (PersistentGemm, BLACKWELL) if arch == "sm_100a" else (HopperGemm, HOPPER)
    for name, (positional, keywords, sizes, clusters) in cases.items():
        try:
            said = run(make(*positional, **keywords), sizes, clusters)
        except Exception:  # a worker reports whatever ended a case
            said = {"error": traceback.format_exc()}
        print("CASE " + json.dumps({"name": name, **said}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

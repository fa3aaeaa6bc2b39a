"""Runs the shipped Hopper grouped GEMM in the simulator on random E2M1 and E4M3 codes: one JSON line.

``python -m tests.sim.wgmma.group_gemm FOLDER``: against the exact sum in float64, rounded once to fp16.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

from pytest_nvfp4.host import redirect

KERNEL = Path(__file__).parents[3] / "kernels" / "nvfp4_group_gemm" / "sm90.py"
SHAPES = [(40, 128, 512), (7, 256, 256), (200, 384, 768)]


def main() -> None:
    os.environ.update(redirect.environment(Path(sys.argv[1]), arch="sm_90a"))
    import ml_dtypes
    import numpy as np
    import torch

    from pytest_nvfp4.device.worker.simulator import simulate

    task = ModuleType("task")
    task.input_t, task.output_t = tuple, list  # type: ignore[attr-defined]
    sys.modules["task"] = task
    spec = importlib.util.spec_from_file_location("sm90", KERNEL)
    assert spec is not None
    assert spec.loader is not None
    kernel = importlib.util.module_from_spec(spec)
    sys.modules["sm90"] = kernel
    spec.loader.exec_module(kernel)

    rng = np.random.default_rng(3)
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def operand(rows: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        packed = rng.integers(0, 256, (rows, k // 2), dtype=np.uint8)
        codes = np.stack([packed & 15, packed >> 4], -1).reshape(rows, k)
        values = np.where(codes & 8, -grid[codes & 7], grid[codes & 7])
        padded = -(-rows // 128) * 128
        scales = rng.integers(0x28, 0x48, (padded, k // 16), dtype=np.uint8)
        blocked = np.zeros((padded // 128, k // 64, 512), np.uint8)
        row, block = np.arange(padded)[:, None], np.arange(k // 16)[None, :]
        blocked[row // 128, block // 4, row % 32 * 16 + row // 32 % 4 * 4 + block % 4] = scales
        real = scales[:rows].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        return packed, blocked, values * real.repeat(16, axis=1)

    with simulate(arch="sm_90a") as session:
        tensors, factors, want = [], [], []
        for m, n, k in SHAPES:
            (a, sfa, a_values), (b, sfb, b_values) = operand(m, k), operand(n, k)
            want.append((a_values @ b_values.T).astype(np.float16))
            out = torch.full((m, n, 1), torch.nan, dtype=torch.float16).cuda()
            packed = [torch.from_numpy(x).cuda().view(torch.float4_e2m1fn_x2)[:, :, None] for x in (a, b)]
            tensors.append((*packed, out))
            factors.append(tuple(torch.from_numpy(x).cuda().view(torch.float8_e4m3fn) for x in (sfa, sfb)))
        outputs = kernel.custom_kernel((tensors, factors, factors, [(*shape, 1) for shape in SHAPES]))
        said = {
            "equal": [bool(np.array_equal(o.cpu().numpy()[:, :, 0], w)) for o, w in zip(outputs, want, strict=True)],
            "findings": [finding.message for finding in session.findings],
            "counters": session.launches[-1].counters,
        }
    print("SAID " + json.dumps(said))  # noqa: T201


if __name__ == "__main__":
    main()

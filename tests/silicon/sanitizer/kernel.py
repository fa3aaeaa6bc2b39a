"""Runs one of the shipped Hopper kernels once, on a small problem: ``python -m tests.silicon.sanitizer.kernel NAME``.

Needs torch and the DSL on a machine with a Hopper GPU. It prints ``RESULT ran``, or ``RESULT right`` or ``wrong`` where
the kernel's file has a reference.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

__all__ = ["KERNELS"]

ROOT = Path(__file__).parents[3]
KERNELS = ("copy_transpose", "reduce_sum", "softmax_online", "nvfp4_group_gemm")


def _module(name: str) -> Any:
    task = types.ModuleType("task")
    task.input_t = task.output_t = object  # type: ignore[attr-defined]
    sys.modules["task"] = task
    spec = importlib.util.spec_from_file_location(f"{name}_sm90", ROOT / "kernels" / name / "sm90.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _run(name: str) -> str:
    import torch

    module = _module(name)
    if name == "nvfp4_group_gemm":
        m, n, k = 96, 256, 512
        a, b = (torch.full((rows, k // 2), 0x22, dtype=torch.uint8, device="cuda") for rows in (m, n))
        sfa, sfb = (
            torch.full((-(-rows // 128) * 128, k // 16), 0x38, dtype=torch.uint8, device="cuda") for rows in (m, n)
        )
        c = torch.zeros((m, n), dtype=torch.float16, device="cuda")
        module.custom_kernel(([(a, b, c)], None, [(sfa, sfb)], [(m, n, k, 1)]))
        torch.cuda.synchronize()
        return "right" if bool((c == k).all()) else f"wrong {int((c != k).sum())}"
    run = {"copy_transpose": "transpose", "reduce_sum": "row_sums", "softmax_online": "softmax"}[name]
    x = torch.arange(200 * 1024, device="cuda").reshape(200, 1024).remainder(17).sub(8).half()
    y = getattr(module, run)(x)
    torch.cuda.synchronize()
    want = module.reference(x)
    return "right" if torch.allclose(y.float(), want.float(), rtol=2e-3, atol=1e-5) else "wrong"


if __name__ == "__main__":
    sys.stdout.write(f"RESULT {_run(sys.argv[1])}\n")

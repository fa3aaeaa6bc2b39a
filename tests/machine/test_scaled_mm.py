"""``torch._scaled_mm`` of block-scaled operands: against plain loops, and through the redirected device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.machine.scaled_mm import is_block_scaled, scaled_mm, scaled_mm_v2
from tests.host.redirect_worker import TORCH_PRELUDE, run_script
from tests.machine.scaled_operands import operand


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "mxfp8"])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 64), (5, 130, 96), (200, 8, 160), (0, 130, 96), (8, 0, 64)])
def test_it_is_the_product_of_the_scaled_values(kind: str, m: int, n: int, k: int) -> None:
    a, scale_a, left = operand(m, k, kind, 1)
    b, scale_b, right = operand(n, k, kind, 2)
    want = (left @ right.T).astype(np.float32)
    assert is_block_scaled(a, scale_a)
    found = scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.float32)
    assert np.array_equal(found.numpy(), want)
    half = scaled_mm(a, b.t(), scale_a, scale_b, torch.ones(n), None, torch.float16)
    assert np.array_equal(half.numpy(), (want + np.float32(1)).astype(np.float16))
    recipe = [2 if kind == "nvfp4" else 3]
    whole = [torch.tensor(0.5), torch.tensor(4.0)]
    found = scaled_mm_v2(
        a, b.t(), [scale_a, whole[0]], [*recipe, 0], [1, 0], [scale_b, whole[1]], [*recipe, 0], [1, 0],
        None, torch.float32,
    )  # fmt: skip
    assert np.array_equal(found.numpy(), 2 * want)


def test_sizes_that_do_not_go_together_are_refused() -> None:
    a, scale_a, _ = operand(128, 64, "nvfp4", 1)
    b, scale_b, _ = operand(128, 64, "nvfp4", 2)
    with pytest.raises(ValueError, match=r"second operand of 128 x 64 .* needs 512 contiguous scales"):
        scaled_mm(a, b.t(), scale_a, scale_b[:256])
    with pytest.raises(ValueError, match="k is 64 in the first operand and 32"):
        scaled_mm(a, b[:, :16].t(), scale_a, scale_b)
    with pytest.raises(HostSideError, match="scale_result"):
        scaled_mm(a, b.t(), scale_a, scale_b, None, torch.ones(1))
    for recipe, swizzle in (([2], [0]), ([1], [1]), ([2, 2], [1, 1])):
        with pytest.raises(HostSideError, match="has no stand-in"):
            scaled_mm_v2(a, b.t(), [scale_a] * 2, recipe, swizzle, [scale_b] * 2, recipe, swizzle, None, None)


@pytest.mark.slow
def test_the_redirected_device_has_it_and_keeps_what_the_cpu_can_do(tmp_path: Path) -> None:
    body = """
x = torch.full((128, 32), 0x22, dtype=torch.uint8, device="cuda").view(torch.float4_e2m1fn_x2)
scale = torch.full((512,), 2.0, device="cuda").to(torch.float8_e4m3fn)
out = torch._scaled_mm(x, x.t(), scale, scale, out_dtype=torch.float16)
said["blocks"] = [str(out.device), str(out.dtype), out.cpu().unique().tolist()]
odd = torch.zeros(512, device="cuda").to(torch.float8_e4m3fn)
odd[:2] = torch.tensor([7.5, 0.5625], device="cuda").to(torch.float8_e4m3fn)  # 16 * (7.5^2 + 0.5625^2) = 905.06
given = torch.empty((128, 128), dtype=torch.float16, device="cuda")
torch._scaled_mm(x, x.t(), odd, odd, out=given)
said["given"] = given.cpu().unique().tolist()[-1]
eight = torch.ones(16, 32, device="cuda").to(torch.float8_e4m3fn)
one = torch.tensor(0.5, device="cuda")
said["whole"] = torch._scaled_mm(eight, eight.t(), one, one, out_dtype=torch.float32).cpu().unique().tolist()
"""
    said = run_script(body, tmp_path, prelude=TORCH_PRELUDE)
    # In bfloat16, which is the type without one, the product of ``given`` is 904.
    assert said == {"blocks": ["cuda:0", "torch.float16", [256.0]], "given": 905.0, "whole": [8.0]}

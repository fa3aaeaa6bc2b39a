"""Products of half-precision device tensors: sums of 16 in float32, as the simulated tensor core makes them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_nvfp4.machine.half_product import LARGEST, half_product, is_half_product
from tests.host.redirect_worker import TORCH_PRELUDE, run_script


def rounded(value: Fraction) -> Fraction:
    """To float32, through float64: 16 products of 22 bits and an accumulator of 24 fit it here."""
    return Fraction(float(np.float32(float(value))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k", [16, 40])
def test_each_step_is_rounded_once(dtype: torch.dtype, k: int) -> None:
    torch.manual_seed(3)
    a, b = torch.randn(3, k).to(dtype), torch.randn(k, 5).to(dtype)
    found = half_product(a, b)
    assert found.dtype == dtype
    for i in range(3):
        for j in range(5):
            total = Fraction(0)
            for start in range(0, k, 16):
                products = (
                    Fraction(a[i, c].item()) * Fraction(b[c, j].item()) for c in range(start, min(start + 16, k))
                )
                total = rounded(total + sum(products, Fraction(0)))
            assert found[i, j] == torch.tensor(float(total), dtype=torch.float32).to(dtype)
    assert torch.equal(half_product(a[None], b[None])[0], found)


def test_which_products_are_taken() -> None:
    half = torch.zeros(2, 3, dtype=torch.float16)
    assert is_half_product(half, half.t())
    assert not is_half_product(half.float(), half.float().t())
    assert not is_half_product(half, half.to(torch.bfloat16).t())
    assert not is_half_product(half, half.new_zeros(()).expand(3, LARGEST))


@pytest.mark.slow
def test_the_device_multiplies_so_and_the_cpu_as_ever(tmp_path: Path) -> None:
    body = """
torch.manual_seed(1)
a, b = torch.randn(64, 512).half(), torch.randn(512, 64).half()
from pytest_nvfp4.machine.half_product import half_product
want = half_product(a, b)
d, e = a.cuda(), b.cuda()
made = (d @ e, torch.einsum("mk,kn->mn", d, e), torch.bmm(d[None], e[None])[0])
said["mm"] = [torch.equal(x.cpu(), want) for x in made]
out = torch.empty(64, 64, dtype=torch.float16, device="cuda")
said["out"] = torch.equal(torch.mm(d, e, out=out).cpu(), want)
said["cpu"] = torch.equal(a @ b, want)
"""
    said = run_script(body, tmp_path, prelude=TORCH_PRELUDE)
    assert said["mm"] == [True, True, True]
    assert said["out"]
    assert not said["cpu"], "else this proves nothing"

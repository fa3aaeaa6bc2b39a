"""``torch._scaled_grouped_mm``: against the product of each group's values, and through the redirected device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.machine.scaled_grouped_mm import scaled_grouped_mm, scaled_grouped_mm_v2
from tests.host.redirect_worker import TORCH_PRELUDE, run_script
from tests.machine.scaled_operands import operand

BLOCKS = {"nvfp4": [2, 0], "mxfp4": [3], "mxfp8": [3]}


def rounded(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)


def called(kind: str, *tensors: torch.Tensor, offs: torch.Tensor, groups: int = 0) -> torch.Tensor:
    """Call with the recipe of a kind; NVFP4's operands have factors 2 of the first, and group + 1 of the second."""
    a, b, scale_a, scale_b = tensors
    factors = [torch.tensor([2.0] * groups), torch.arange(1.0, groups + 1)]
    left, right = ([scale_a, factors[0]], [scale_b, factors[1]]) if kind == "nvfp4" else ([scale_a], [scale_b])
    recipe = BLOCKS[kind]
    return scaled_grouped_mm_v2(a, b, left, recipe, [1, 0], right, recipe, [1, 0], offs, None, torch.bfloat16)


def factor(kind: str, group: int) -> float:
    return 2.0 * (group + 1) if kind == "nvfp4" else 1.0


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_block_scales_groups_along_m(kind: str) -> None:
    sizes, n, k = (130, 0, 33), 48, 96
    parts = [operand(m, k, kind, 10 + g) for g, m in enumerate(sizes)]
    weights = [operand(n, k, kind, 20 + g) for g in range(len(sizes))]
    a, scale_a = torch.cat([part[0].view(torch.uint8) for part in parts]), [part[1] for part in parts]
    b, scale_b = torch.stack([w[0].view(torch.uint8) for w in weights]), torch.stack([w[1] for w in weights])
    dtype = parts[0][0].dtype
    offs = torch.tensor(sizes).cumsum(0).to(torch.int32)
    found = called(
        kind, a.view(dtype), b.view(dtype).transpose(1, 2), torch.cat(scale_a), scale_b, offs=offs, groups=len(sizes)
    )
    want = np.concatenate(
        [factor(kind, g) * (part[2] @ w[2].T) for g, (part, w) in enumerate(zip(parts, weights, strict=True))]
    )
    assert torch.equal(found, rounded(want))


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_block_scales_groups_along_k(kind: str) -> None:
    sizes, m, n = (64, 160, 32), 130, 16
    parts = [operand(m, k, kind, 10 + g) for g, k in enumerate(sizes)]
    weights = [operand(n, k, kind, 20 + g) for g, k in enumerate(sizes)]
    dtype = parts[0][0].dtype
    a = torch.cat([part[0].view(torch.uint8) for part in parts], dim=1).view(dtype)
    b = torch.cat([w[0].view(torch.uint8) for w in weights], dim=1).view(dtype).t()
    offs = torch.tensor(sizes).cumsum(0).to(torch.int32)
    scales = torch.cat([part[1] for part in parts]), torch.cat([w[1] for w in weights])
    found = called(kind, a, b, *scales, offs=offs, groups=len(sizes))
    for g, (part, w) in enumerate(zip(parts, weights, strict=True)):
        assert torch.equal(found[g], rounded(factor(kind, g) * (part[2] @ w[2].T)))
    first = scaled_grouped_mm(a, b, *scales, offs) if kind == "mxfp8" else found
    assert torch.equal(first, found)


@pytest.mark.parametrize("form", ["2d-3d", "2d-2d", "3d-2d", "3d-3d"])
def test_scales_of_rows(form: str) -> None:
    rng = np.random.default_rng(0)
    along = {"2d-3d": (3, 0, 29), "2d-2d": (16, 32, 16), "3d-2d": (16, 48, 16), "3d-3d": ()}[form]
    groups, m, n, k = 3, 8, 16, 32
    total = sum(along)
    a_shape = {"2d-3d": (total, k), "2d-2d": (m, total)}.get(form, (groups, m, k))
    b_shape = {"2d-2d": (n, total), "3d-2d": (total, k)}.get(form, (groups, n, k))
    a, b = (
        torch.from_numpy(rng.integers(0, 0x50, shape, dtype=np.uint8)).view(torch.float8_e4m3fn)
        for shape in (a_shape, b_shape)
    )
    if form == "2d-2d":
        scale_a, scale_b = torch.rand(groups * m), torch.rand(groups * n)
    else:
        scale_a = torch.rand(a_shape[:-1])
        scale_b = torch.rand(b_shape[:-1])
    offs = torch.tensor(along).cumsum(0).to(torch.int32) if along else None
    found = scaled_grouped_mm(a, b.transpose(-1, -2), scale_a, scale_b, offs)
    again = scaled_grouped_mm_v2(a, b.transpose(-1, -2), [scale_a], [1], [], [scale_b], [1], [], offs)
    assert torch.equal(found, again)
    left, right = a.to(torch.float64).numpy(), b.to(torch.float64).numpy()
    sa, sb = scale_a.double().numpy(), scale_b.double().numpy()
    start = 0
    for g in range(groups):
        part = slice(start, start := start + (along[g] if along else 0))
        rows, columns = slice(g * m, g * m + m), slice(g * n, g * n + n)
        if form == "2d-3d":
            x, y, p, q, out = left[part], right[g], sa[part], sb[g], found[part]
        elif form == "2d-2d":
            x, y, p, q, out = left[:, part], right[:, part], sa[rows], sb[columns], found[g]
        elif form == "3d-2d":
            x, y, p, q, out = left[g], right[part], sa[g], sb[part], found[:, part]
        else:
            x, y, p, q, out = left[g], right[g], sa[g], sb[g], found[g]
        assert torch.equal(out, rounded((x @ y.T) * p[:, None] * q[None, :])), g


def test_what_fits_nothing_is_refused() -> None:
    a, scale_a, _ = operand(128, 64, "mxfp8", 1)
    b, scale_b, _ = operand(128, 64, "mxfp8", 2)
    whole = torch.tensor([64], dtype=torch.int32)
    with pytest.raises(ValueError, match="groups need 512"):
        scaled_grouped_mm(a, b.t(), scale_a[:256], scale_b, whole)
    for offs, said in (
        (None, "offs are needed"),
        (torch.tensor([128], dtype=torch.int32), "end at 128, outside"),
        (torch.tensor([64]), "int32"),
        (torch.tensor([64, 32], dtype=torch.int32), "ascending"),
    ):
        with pytest.raises(ValueError, match=said):
            scaled_grouped_mm(a, b.t(), scale_a, scale_b, offs)
    with pytest.raises(ValueError, match="only bfloat16"):
        scaled_grouped_mm(a, b.t(), scale_a, scale_b, whole, out_dtype=torch.float16)
    with pytest.raises(HostSideError, match="layout of cuBLAS"):
        scaled_grouped_mm_v2(a, b.t(), [scale_a], [3], [0], [scale_b], [3], [0], whole)


@pytest.mark.slow
def test_the_redirected_device_has_it_and_out(tmp_path: Path) -> None:
    body = """
eight = torch.ones(64, 32, device="cuda").to(torch.float8_e4m3fn)
weights = torch.ones(2, 16, 32, device="cuda").to(torch.float8_e4m3fn).transpose(1, 2)
offs = torch.tensor([16, 48], dtype=torch.int32, device="cuda")
out = torch._scaled_grouped_mm(
    eight, weights, torch.full((64,), 0.5, device="cuda"), torch.ones(2, 16, device="cuda"), offs
)
said["rows"] = [str(out.device), out[:48].unique().tolist(), bool(out[48:].isnan().all())]
from torch.nn.functional import ScalingType, scaled_grouped_mm
out = scaled_grouped_mm(
    eight, weights, torch.full((64,), 0.5, device="cuda"), ScalingType.RowWise, torch.ones(2, 16, device="cuda"),
    ScalingType.RowWise, offs=offs,
)
said["named"] = out[:48].unique().tolist()
x = torch.full((128, 32), 0x22, dtype=torch.uint8, device="cuda").view(torch.float4_e2m1fn_x2)
scale = torch.full((512,), 2.0, device="cuda").to(torch.float8_e4m3fn)
into = torch.zeros(128, 128, dtype=torch.float16, device="cuda")
torch._scaled_mm(x, x.t(), scale, scale, out_dtype=torch.float16, out=into)
said["out"] = into.unique().tolist()
"""
    said = run_script(body, tmp_path, prelude=TORCH_PRELUDE)
    assert said == {"rows": ["cuda:0", [16.0], True], "named": [16.0], "out": [256.0]}

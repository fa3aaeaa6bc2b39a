"""Operators that torch has for GPUs only."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.machine import operators
from pytest_nvfp4.machine.operators import run


def on_device(func: Any, *args: Any) -> Any:
    """Execute an operator on tensors that are all on the device."""
    device = {id(value) for value in args if isinstance(value, torch.Tensor)}
    return run(func, args, {}, on_device=device, place=lambda tensor, _: tensor).result


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_of_cudnn_is_that_of_torch(training: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, 3, 3, generator=generator)
    weight, bias, mean = torch.randn(3, 4, generator=generator)
    running = [(mean.clone(), torch.full((4,), 2.0)) for _ in range(2)]
    out, *_, reserve = on_device(
        torch.ops.aten.cudnn_batch_norm.default, x, weight, bias, *running[0], training, 0.1, 1e-5
    )
    expected = torch.native_batch_norm(x, weight, bias, *running[1], training, 0.1, 1e-5)[0]
    assert torch.equal(out, expected)
    assert all(torch.equal(mine, other) for mine, other in zip(*running, strict=True))
    assert reserve.numel() == 0


@pytest.mark.parametrize("inner", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("batched", [False, True])
def test_products_with_a_type_of_the_result_are_not_rounded_to_that_of_the_operands(
    inner: torch.dtype, batched: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (2,) * batched
    a, b = (torch.randint(-9, 9, (*shape, *size), generator=generator).to(inner) for size in ((3, 40), (40, 5)))
    addend = torch.randn(*shape, 3, 5, generator=generator)
    product, total = (
        (torch.ops.aten.bmm, torch.ops.aten.baddbmm) if batched else (torch.ops.aten.mm, torch.ops.aten.addmm)
    )
    wide = a.float() @ b.float()
    assert torch.equal(on_device(product.dtype, a, b, torch.float32), wide)
    assert torch.equal(on_device(total.dtype, addend, a, b, torch.float32), wide + addend)
    assert on_device(product.dtype, a, b, inner).dtype == inner
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32"):
        on_device(product.dtype, a, b, torch.float64)


def test_an_operator_for_gpus_only_is_refused_by_its_name() -> None:
    x, weight = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3)
    convolution = torch.ops.aten.cudnn_convolution.default
    with pytest.raises(HostSideError, match=r"^aten::cudnn_convolution has no stand-in without a GPU: torch computes"):
        on_device(convolution, x, weight, [0, 0], [1, 1], [1, 1], 1, False, False, False)


def test_another_operator_that_is_not_implemented_keeps_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise NotImplementedError("Could not run 'aten::other' here")

    monkeypatch.setattr(operators, "_stand_in", lambda *_: refuse)
    with pytest.raises(NotImplementedError, match="other"):
        on_device(torch.ops.aten.relu.default, torch.zeros(1))


@pytest.mark.parametrize("func", ["zeros", "zeros_like", "new_zeros", "ones"])
def test_many_zeros_are_placed_without_memory(func: str) -> None:
    """A public submission takes its outputs from 80 GB of zeros."""
    placed: list[tuple[bool, bool]] = []

    def place(tensor: torch.Tensor, initialised: bool) -> torch.Tensor:
        placed.append((tensor.is_meta, initialised))
        return tensor

    device = torch.device("cuda")
    for size in (2, int(2e10)) if func != "ones" else (2,):
        like = torch.empty(1).expand(size)
        arguments: dict[str, tuple[Any, ...]] = {"zeros_like": (like,), "new_zeros": (like, [size])}
        operator = getattr(torch.ops.aten, func).default
        result = run(
            operator,
            arguments.get(func, ([size],)),
            {"device": device, "dtype": torch.float32},
            on_device=(),
            place=place,
        ).result
        assert (result.shape, result.dtype) == ((size,), torch.float32)
    assert placed == [(False, True), (True, True)][: len(placed)]

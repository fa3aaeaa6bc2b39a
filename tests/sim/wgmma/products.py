"""Products of codes drawn at random, and their sums one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from pytest_nvfp4.sim.wgmma.formats import OPERAND_TYPES
from pytest_nvfp4.sim.wgmma.product import Product


def codes(draw: st.DrawFn, name: str, rows: int, k: int) -> NDArray[Any]:
    form = OPERAND_TYPES[name]
    pool = draw(st.sampled_from(["any", "narrow"]))
    if pool == "any":
        return draw(arrays(form.codes, (rows, k), elements=st.integers(0, 2**form.bits - 1)))
    values = np.array([0, 1, -1, 2, 0.5, -3, 1.5], np.float32)
    picked = values[draw(arrays(np.int8, (rows, k), elements=st.integers(0, 6)))]
    if name == "f16":
        return picked.astype(np.float16).view(np.uint16)
    return (picked.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


@st.composite
def products(draw: st.DrawFn) -> tuple[Product, NDArray[Any] | None]:
    name = draw(st.sampled_from(["f16", "bf16"]))
    count, k = draw(st.integers(1, 3)), 4
    a, b = codes(draw, name, 16, count * k), codes(draw, name, 8, count * k)
    form = OPERAND_TYPES[name]
    product = Product(a, b, a_format=form, b_format=form, count=count, negate=draw(st.booleans()))
    start = None
    if draw(st.booleans()):
        start = draw(arrays(np.float32, (16, 8), elements=st.sampled_from([0.0, 1.0, -2.5, 2.0**-20, 1e10])))
    return product, start


def one_by_one(product: Product, start: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
    value = np.zeros((16, 8), dtype) if start is None else start.astype(dtype)
    k = product.a.shape[1] // product.count
    with np.errstate(all="ignore"):
        for i in range(product.count):
            a = product.a[:, k * i : k * i + k].astype(np.float64)
            b = product.b[:, k * i : k * i + k].astype(np.float64)
            value = (np.einsum("mk,nk->mn", a, b) + value).astype(dtype)
    return value

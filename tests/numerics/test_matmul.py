"""Products in pieces: exact, whoever sums them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics import blas, matmul
from pytest_nvfp4.numerics import threads as threads_module


@pytest.fixture(params=["setter", "no setter"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with and without a BLAS whose threads can be limited."""
    if request.param == "no setter":
        monkeypatch.setattr(blas, "threads", lambda: None)


@pytest.mark.usefixtures("threads")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(m=st.integers(0, 100), n=st.integers(0, 100), k=st.integers(0, 230), seed=st.integers(0, 9))
def test_it_is_the_product(m: int, n: int, k: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    a, b = draw.integers(-9999, 9999, (m, k)), draw.integers(-9999, 9999, (n, k))
    assert np.array_equal(matmul.product(a.astype(np.float64), b.astype(np.float64)), a @ b.T)
    assert np.array_equal(matmul.on_one_thread(a.astype(np.float64), b.astype(np.float64)), a @ b.T)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("cores", [1, 2, 16])
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """Of real numbers too, whose sums depend on their order."""
    draw = np.random.default_rng(3)
    a, b = draw.standard_normal((130, 260)), draw.standard_normal((70, 260))
    monkeypatch.setattr(matmul, "_SIDE", 48)
    monkeypatch.setattr(matmul, "LARGE", 1 << 60)
    want = matmul.product(a, b)
    monkeypatch.setattr(matmul, "LARGE", 0)
    monkeypatch.setattr(threads_module, "cores", lambda: cores)
    assert matmul.product(a, b).tobytes() == want.tobytes()
    assert want.tobytes() != (a[:, ::-1] @ b[:, ::-1].T).tobytes(), "another order gives other bits"


def test_a_large_one_is_shared_out_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(threads: int) -> ThreadPoolExecutor:
        seen.append(threads)
        return ThreadPoolExecutor(threads)

    monkeypatch.setattr(threads_module, "ThreadPoolExecutor", counted)
    monkeypatch.setattr(threads_module, "cores", lambda: 3)
    before = set(threading.enumerate())
    matmul.product(np.ones((200, 100)), np.ones((10, 100)))
    assert seen == []
    assert (matmul.product(np.ones((300, 300)), np.ones((300, 300))) == 300).all()
    assert seen == [3]
    assert set(threading.enumerate()) <= before, "threads of earlier tests may still end"

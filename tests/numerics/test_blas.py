from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.numerics import blas


def test_threads_are_put_back() -> None:
    found = blas.threads()
    if found is None:
        pytest.skip("numpy's BLAS is not OpenBLAS")
    before = found._get()
    with blas.one_thread() as certain:
        assert certain
        assert found._get() == 1
    assert found._get() == before


def test_the_last_of_several_blocks_puts_them_back() -> None:
    count = [4]
    threads = blas.Threads(lambda: count[0], lambda value: count.__setitem__(0, value))
    first, second = threads.one(), threads.one()
    first.__enter__()
    second.__enter__()
    assert count == [1]
    first.__exit__(None, None, None)
    assert count == [1], "another block is still open"
    second.__exit__(None, None, None)
    assert count == [4]


def test_without_a_setter_nothing_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "threads", lambda: None)
    with blas.one_thread() as certain:
        assert not certain
        assert (np.ones((2, 3)) @ np.ones((3, 2)) == 3).all()

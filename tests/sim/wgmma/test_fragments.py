"""Fragments against the DSL's own layouts, against the ISA's formulas, and there and back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.sim.wgmma.fragments import a_matrix, accumulator_matrix, accumulator_registers, b_matrix, stack
from tests.sim.wgmma import oracle
from tests.sim.wgmma.fragments import by_thread_and_value, parsed


@pytest.fixture(scope="module")
def layouts():
    script = Path(__file__).parent / "dsl_layouts.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=900, check=False)
    line = next((line for line in result.stdout.splitlines() if line.startswith("LAYOUTS ")), None)
    assert line is not None, result.stderr[-3000:]
    return json.loads(line[8:])


@pytest.mark.slow
def test_the_dsl_has_the_layouts(layouts):
    assert len(layouts) == 16 + 1 + 2


def test_accumulators_are_the_dsls(layouts):
    for name, (_, _, text) in layouts.items():
        m, n, _ = parsed(name)
        want = by_thread_and_value(text)  # offset = row + m * column
        assert want.shape == (2 * m, n // 2)
        for warp in range(m // 16):
            rows = np.arange(16)[:, None] + 16 * warp
            matrix = (rows + m * np.arange(n)).astype(np.int32)
            registers = accumulator_registers(matrix)
            assert np.array_equal(registers.T, want[32 * warp : 32 * warp + 32]), name


def test_a_and_b_are_the_dsls(layouts):
    for name, (a_text, b_text, _) in layouts.items():
        m, n, k = parsed(name)
        codes = np.uint8 if k == 32 else np.uint16
        want = by_thread_and_value(a_text)
        # Offsets fit 16 bits; 8-bit elements take them in two halves.
        for shift in (0, 8) if codes is np.uint8 else (0,):
            matrix = np.arange(m * k).reshape(k, m).T >> shift & np.iinfo(codes).max
            for warp in range(m // 16):
                values = (want[32 * warp : 32 * warp + 32] >> shift & np.iinfo(codes).max).astype(codes)
                registers = values.view(np.uint32).T
                assert np.array_equal(a_matrix(registers, codes), matrix[16 * warp : 16 * warp + 16]), name
        if name.startswith("mma"):
            values = by_thread_and_value(b_text).astype(np.uint16)
            matrix = np.arange(n * k).reshape(k, n).T
            assert np.array_equal(b_matrix(values.view(np.uint32).T, np.uint16), matrix)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_is_the_isas(bits):
    codes = {8: np.uint8, 16: np.uint16, 32: np.uint32}[bits]
    k = 256 // bits
    matrix = np.random.default_rng(bits).integers(0, 1 << bits, size=(64, k), dtype=codes)
    registers = oracle.a_registers(matrix)
    for warp in range(4):
        assert np.array_equal(
            a_matrix(registers[32 * warp : 32 * warp + 32].T, codes), matrix[16 * warp : 16 * warp + 16]
        )


@given(n=st.integers(1, 32), kind=st.sampled_from([np.float32, np.int32, np.float16]), seed=st.integers(0, 99))
def test_accumulators_there_and_back(n, kind, seed):
    matrix = np.random.default_rng(seed).integers(-999, 999, size=(16, 8 * n)).astype(kind)
    registers = accumulator_registers(matrix)
    assert registers.shape == (4 * n * np.dtype(kind).itemsize // 4, 32)
    assert np.array_equal(accumulator_matrix(registers, kind), matrix)
    whole = np.concatenate([matrix] * 4)
    assert np.array_equal(oracle.to_registers(whole)[:32], registers.T)


def test_stack_takes_uniform_values():
    lane = np.arange(32, dtype=np.uint32)
    assert np.array_equal(stack([5, lane]), np.stack([np.full(32, 5), lane]))
    assert np.array_equal(stack([lane, lane]), np.stack([lane, lane]))

"""Compile ``steps/map_updates.py`` without a GPU and check what its PTX and CUBIN say."""

import re

import pytest

from tests.kernels.compiled import compile_gemm
from tests.kernels.cta_map import load
from tests.kernels.map_updates_checks import (
    check_barriers,
    check_epilogue,
    check_mma,
    check_no_local_memory,
    check_scale_factor_copies,
    check_tensormaps,
    check_tma,
    check_tmem,
)

# Two CTAs of 192 threads share the SM's 65,536 registers; they are given out per warp, in units of 8 a thread.
MAX_REGISTERS = 65536 // (2 * 192) // 8 * 8


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return compile_gemm(tmp_path_factory.mktemp("map_updates"), "steps/map_updates", "sm_100a", load())


@pytest.mark.slow
def test_mma(artifacts):
    check_mma(artifacts.ptx)
    with pytest.raises(AssertionError):
        check_mma(artifacts.ptx.replace("mxf4nvf4", "mxf4"))


@pytest.mark.slow
def test_scale_factor_copies(artifacts):
    check_scale_factor_copies(artifacts.ptx)
    with pytest.raises(AssertionError):
        check_scale_factor_copies(artifacts.ptx.replace("32x128b.warpx4", "32x128b"))


def test_tma_loads_bring_what_the_barrier_expects(artifacts):
    check_tma(artifacts.ptx)
    with pytest.raises(AssertionError):
        check_tma(artifacts.ptx.replace("36864", "36352"))
    with pytest.raises(AssertionError):
        check_tma(artifacts.ptx.replace("bulk.tensor.3d", "bulk.tensor.2d", 1))


def test_tensormaps_are_released_acquired_and_used(artifacts):
    check_tensormaps(artifacts.ptx)
    acquire = re.search(r"fence\.proxy\.tensormap::generic\.acquire\.gpu \[%rd\d+\], 128;", artifacts.ptx)[0]
    with pytest.raises(AssertionError):
        check_tensormaps(artifacts.ptx.replace(acquire, ""))
    with pytest.raises(AssertionError):
        check_tensormaps(artifacts.ptx.replace("bar.sync", "bar.warp.sync"))


def test_barriers(artifacts):
    check_barriers(artifacts.ptx, artifacts.constants.NUM_STAGES)
    with pytest.raises(AssertionError):
        check_barriers(artifacts.ptx, artifacts.constants.NUM_STAGES + 1)


def test_tmem_is_allocated_as_needed_and_freed_after_the_last_load(artifacts):
    check_tmem(artifacts.ptx, 256)
    with pytest.raises(AssertionError):
        check_tmem(re.sub(r"(mov\.b32 \t%r\d+, )256(;\n\ttcgen05\.alloc)", r"\g<1>512\2", artifacts.ptx), 256)
    with pytest.raises(AssertionError):
        check_tmem(artifacts.ptx.replace("tcgen05.wait::ld.sync.aligned;", ""), 256)


def test_the_epilogue_rounds_to_nearest_and_skips_rows_beyond_m(artifacts):
    check_epilogue(artifacts.ptx)
    with pytest.raises(AssertionError):
        check_epilogue(artifacts.ptx.replace("cvt.rn.f16x2", "cvt.rz.f16x2", 1))


def test_no_spills_and_registers_for_two_ctas(artifacts):
    check_no_local_memory(artifacts.ptx)
    with pytest.raises(AssertionError):
        check_no_local_memory(artifacts.ptx + "\tst.local.b32 \t[%rd1], %r1;\n")
    resources = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", artifacts.usage))
    assert resources["STACK"] == resources["LOCAL"] == "0"
    assert int(resources["REG"]) <= MAX_REGISTERS


def test_two_ctas_fit_one_sm(artifacts):
    constants = artifacts.constants
    assert constants.NUM_STAGES == 3
    assert 2 * constants.TMEM_COLUMNS == 512
    assert 2 * (1024 + constants.CONTROL_BYTES + constants.NUM_STAGES * constants.STAGE_BYTES) <= 228 * 1024
    assert 2 * (1024 + constants.CONTROL_BYTES + (constants.NUM_STAGES + 1) * constants.STAGE_BYTES) > 228 * 1024

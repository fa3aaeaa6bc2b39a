"""Compile the sm_90a grouped GEMM without a GPU and check its PTX and SASS, its decoding and its schedule."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_nvfp4.problem import GPUMODE, GPUMODE_BENCH
from tests.kernels.compiled import compile_gemm, run_tool
from tests.kernels.sm90_checks import (
    CTA_SMEM,
    check_barriers,
    check_copies,
    check_epilogue,
    check_overlap_of_launches,
    check_registers,
    check_wgmma,
    check_wgmma_is_asynchronous,
)
from tests.kernels.sm90_source import check_decoding, check_plan, load, load_decoder, longest, swap, widths

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return compile_gemm(tmp_path_factory.mktemp("sm90"), "sm90", "sm_90a", load())


@pytest.fixture(scope="module")
def sass(artifacts):
    return run_tool("nvidia-cuda-nvdisasm", "nvdisasm", artifacts.cubin)


#
# PTX
#


def test_wgmma_takes_weights_from_registers(artifacts):
    check_wgmma(artifacts.ptx, artifacts.constants)
    with pytest.raises(AssertionError):
        check_wgmma(artifacts.ptx.replace("m64n64k16", "m64n80k16"), artifacts.constants)
    with pytest.raises(AssertionError):
        check_wgmma(re.sub(r", \{(%r\d+), %r\d+, %r\d+, %r\d+\}, ", r", \1, ", artifacts.ptx), artifacts.constants)


def test_copies_fill_a_stage(artifacts):
    check_copies(artifacts.ptx, artifacts.constants)
    with pytest.raises(AssertionError):
        check_copies(artifacts.ptx.replace("acquire.sys", "acquire.cta"), artifacts.constants)
    with pytest.raises(AssertionError):
        check_copies(artifacts.ptx.replace(".multicast::cluster", ""), artifacts.constants)


def test_barriers_count_who_arrives(artifacts):
    check_barriers(artifacts.ptx, artifacts.constants)
    wrong = SimpleNamespace(**{**vars(artifacts.constants), "CLUSTER": 1})
    with pytest.raises(AssertionError):
        check_barriers(artifacts.ptx, wrong)


def test_second_kernel_waits_before_it_reads_what_the_first_wrote(artifacts):
    check_overlap_of_launches(artifacts.ptx)
    with pytest.raises(AssertionError):
        check_overlap_of_launches(artifacts.ptx.replace("griddepcontrol.wait", "griddepcontrol.launch_dependents"))


def test_the_epilogue_rounds_to_nearest_and_skips_rows_beyond_m(artifacts):
    check_epilogue(artifacts.ptx, artifacts.constants)
    with pytest.raises(AssertionError):
        check_epilogue(artifacts.ptx.replace("cvt.rn.f16x2.f32", "cvt.rz.f16x2.f32", 1), artifacts.constants)
    with pytest.raises(AssertionError):
        check_epilogue(artifacts.ptx.replace("@p st.global.b32", "st.global.b32", 1), artifacts.constants)


#
# SASS
#


def test_wgmma_is_not_serialised(artifacts, sass):
    check_wgmma_is_asynchronous(sass, artifacts.constants)
    with pytest.raises(AssertionError):
        check_wgmma_is_asynchronous(sass.replace("gsb0, 0x1", "gsb0, 0x0", 1), artifacts.constants)


def test_no_spills_and_registers_as_shared_out(artifacts, sass):
    check_registers(sass, artifacts.usage, artifacts.constants)
    with pytest.raises(AssertionError):
        check_registers(sass + "\tSTL [R1], R2 ;", artifacts.usage, artifacts.constants)
    with pytest.raises(AssertionError):
        check_registers(sass + "\tMOV R232, R2 ;", artifacts.usage, artifacts.constants)
    actions = dict(re.findall(r"setmaxnreg\.(inc|dec)\S* \t?(\d+);", artifacts.ptx))
    constants = artifacts.constants
    assert actions == {"inc": str(constants.CONSUMER_REGISTERS), "dec": str(constants.PRODUCER_REGISTERS)}


def test_stages_fit_shared_memory(artifacts):
    constants = artifacts.constants
    barriers = 2 * 8 * (constants.WEIGHT_STAGES + constants.TOKEN_STAGES)
    stages = constants.TOKEN_STAGES * constants.TOKEN_STAGE + constants.WEIGHT_STAGES * constants.WEIGHT_STAGE
    assert stages + barriers <= CTA_SMEM
    for width in widths(constants):
        assert constants.atoms_per_stage(width) * width * constants.LINE <= constants.TOKEN_STAGE


#
# Decoding: the kernel's own functions, their PTX executed by numpy
#


def test_every_pair_of_codes_decodes_exactly():
    check_decoding(load_decoder())


@pytest.mark.parametrize(
    "edit",
    [
        swap("E2M1_MASK = 0x8E008E00", "E2M1_MASK = 0x8C008C00"),
        swap("SIGNS = 0x80808080", "SIGNS = 0x80008000"),
        swap("SCALE_FACTOR = 0x58005800", "SCALE_FACTOR = 0x5C005C00"),
        swap("even = spread(word << 4, word << 1)", "even = spread(word << 4, word << 2)"),
        swap("pairs = ((even << 8) & mask, (odd << 8) & mask", "pairs = ((odd << 8) & mask, (even << 8) & mask"),
    ],
    ids=["mantissa", "signs", "overflow", "shift", "order"],
)
def test_wrong_decoders_are_caught(edit):
    with pytest.raises(AssertionError):
        check_decoding(load_decoder(edit=edit))


#
# The schedule
#


groups = st.tuples(
    st.integers(0, 700), st.integers(0, 9).map(lambda i: 128 * i), st.integers(1, 9).map(lambda i: 256 * i), st.just(1)
)
problems = st.lists(groups, min_size=1, max_size=6).filter(lambda sizes: any(m and n for m, n, _, _ in sizes))


@settings(max_examples=60, deadline=None)
@given(sizes=problems, workers=st.integers(1, 70))
@example(sizes=[(1, 128, 256, 1)], workers=66)
@example(sizes=[(0, 128, 256, 1), (193, 384, 512, 1)], workers=1)
def test_the_plan_computes_every_output_once(sizes, workers):
    check_plan(load(), sizes, workers)


@pytest.mark.parametrize("problem", [*GPUMODE, *GPUMODE_BENCH], ids=lambda problem: problem.name)
def test_the_plan_of_the_official_problems(problem):
    check_plan(load(), problem.sizes, 66)


SMALL = [(40, 384, 256, 1), (200, 128, 512, 1), (60, 128, 256, 1)]
CUT = [(m, 4096, 7168, 1) for m in (207, 229, 9)]


@pytest.mark.parametrize(
    ("edit", "sizes", "workers"),
    [
        (swap("sorted(one, reverse=True)", "sorted(one)"), SMALL, 2),
        (swap("depth = max(map(len, lists)) + 1", "depth = max(map(len, lists))"), SMALL, 2),
        (swap("rows = min(height, m - start)", "rows = height"), [(300, 128, 256, 1)], 2),
        (swap("blocks = range(0, n // WEIGHT_ROWS, CLUSTER)", "blocks = range(0, n // WEIGHT_ROWS)"), SMALL, 2),
        (swap("line += (m if n else 0) * units * ATOMS_PER_UNIT", "line += (m if n else 0) * units"), SMALL, 2),
        (swap("schedule(problem_sizes, workers) if one]", "schedule(problem_sizes, workers)]"), SMALL, 66),
        (swap("ceil_div(ceil_div(m, ceil_div(m, most)), 8) * 8", "ceil_div(m, 2)"), [(300, 128, 256, 1)], 2),
        (swap("lines[group] + start, m, 2 * n", "lines[group] + start, height, 2 * n"), [(300, 128, 256, 1)], 2),
        (swap("group, start + width, left, block", "group, start, left, block"), CUT, 66),
    ],
    ids=["order", "end", "ragged", "twice", "overlap", "idle", "swizzle", "height", "rest"],
)
def test_wrong_plans_are_caught(edit, sizes, workers):
    check_plan(load(), sizes, workers)
    with pytest.raises(AssertionError):
        check_plan(load(edit=edit), sizes, workers)


@pytest.mark.parametrize("problem", GPUMODE_BENCH, ids=lambda problem: problem.name)
def test_no_list_is_longer_than_with_even_cuts(problem):
    kernel = load()
    even = min(kernel.assign(kernel.even_items(problem.sizes, most), 66)[0] for most in kernel.WIDTHS[1:])
    assert longest(kernel, problem.sizes, 66) <= even
    if problem.name == "gpumode-bench-0":
        # An uncut schedule, whose lists have equal sums, would take 1 / 1.1 of it.
        uncut = sum(cost for cost, _ in kernel.even_items(problem.sizes, 256)) / 66
        assert uncut < longest(kernel, problem.sizes, 66) < 1.1 * uncut < 0.9 * even


@pytest.mark.parametrize(
    "group", [(-1, 128, 256, 1), (8, 64, 256, 1), (8, 128, 0, 1), (8, 128, 128, 1), (8, 128, 256, 2)]
)
def test_problems_outside_the_contract_are_refused(group):
    with pytest.raises(ValueError, match=r"group 1 is \(m, n, k, l\)"):
        load().check_problem([(8, 128, 256, 1), group])

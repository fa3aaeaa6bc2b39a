"""Compile the sm_90a grouped GEMM without a GPU and check its PTX and SASS, its decoding and its schedule."""

import ast
import functools
import heapq
import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.problem import GPUMODE, GPUMODE_BENCH

pytestmark = pytest.mark.slow

KERNEL = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm" / "sm90.py"

# A Hopper SM: registers, and shared memory that one CTA may have.
SM_REGISTERS, CTA_SMEM = 65536, 227 * 1024


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """PTX text, SASS text and resource usage of the CUBIN, and the kernel's constants."""
    folder = tmp_path_factory.mktemp("sm90")
    dump = folder / "dump"
    dump.mkdir()
    (folder / "task.py").write_text(
        "from typing import TypeVar\ninput_t = TypeVar('input_t')\noutput_t = TypeVar('output_t')\n"
    )
    environment = {
        **os.environ,
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        "CUTE_DSL_DRYRUN": "0",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_KEEP_CUBIN": "1",
        "CUTE_DSL_DUMP_DIR": str(dump),
        "PYTHONPATH": os.pathsep.join([str(folder), str(KERNEL.parent)]),
    }
    command = [sys.executable, "-c", "import sm90; sm90.compile_kernel([(40, 128, 256, 1)])"]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    ptx, cubin = list(dump.glob("*.ptx")), list(dump.glob("*.cubin"))
    # CuTe DSL 4.4 fails after both are written when there is no driver, so the files decide.
    assert len(ptx) == len(cubin) == 1, f"no PTX or no CUBIN in {dump}:\n{result.stdout}\n{result.stderr}"
    return SimpleNamespace(
        ptx=ptx[0].read_text().replace("\0", ""),
        sass=run_tool("nvidia-cuda-nvdisasm", "nvdisasm", cubin[0]),
        usage=run_tool("nvidia-cuda-cuobjdump", "cuobjdump", "--dump-resource-usage", cubin[0]),
        constants=load(),
    )


def run_tool(wheel, tool, *arguments):
    path = next(Path(file.locate()) for file in importlib.metadata.files(wheel) if file.name == tool)
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def load(*, edit=lambda source: source, **names):
    """The kernel file's constants and plain functions without the DSL; `edit` changes its source, `names` come last."""
    namespace = {"functools": functools, "heapq": heapq, "input_t": None, "output_t": None}
    for node in ast.parse(edit(KERNEL.read_text())).body:
        if isinstance(node, ast.Assign) or (isinstance(node, ast.FunctionDef) and not is_staged(node)):
            exec(compile(ast.Module([node], []), str(KERNEL), "exec"), namespace)
    namespace.update(names)  # the functions look names up when they are called
    return SimpleNamespace(**namespace)


def is_staged(function):
    return any(ast.unparse(decorator).startswith("cute.") for decorator in function.decorator_list)


def swap(old, new):
    """An edit that must apply."""

    def edit(source):
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
        return source.replace(old, new)

    return edit


def widths(constants):
    return range(constants.MIN_WIDTH, constants.MAX_WIDTH + 1, constants.WIDTH_STEP)


def count(pattern, text):
    return len(re.findall(pattern, text))


#
# PTX
#


def check_wgmma(ptx, constants):
    """Of each width one main loop: 4 atoms of 4 K-steps, the weights in registers and the tokens in shared memory."""
    for width in widths(constants):
        name = rf"wgmma\.mma_async\.sync\.aligned\.m64n{width}k16\.f32\.f16\.f16"
        registers = r"\{%[rf]\d+(?:, %[rf]\d+)*\}"
        assert count(rf"{name} {registers}, \{{(?:%r\d+(?:, )?){{4}}\}}, %rd\d+,", ptx) == 16, width
    assert count(r"wgmma\.mma_async", ptx) == 16 * len(widths(constants))


def check_copies(ptx, constants):
    chunks = (constants.WEIGHT_BYTES + constants.SCALE_BYTES) // 16
    assert count(r"cp\.async\.cg\.shared\.global \[%r\d+\], \[%rd\d+\], 16;", ptx) == chunks / constants.WEIGHT_THREADS
    assert count(r"cp\.async\.mbarrier\.arrive\.noinc", ptx) == 1
    assert count(r"cp\.async\.bulk\.", ptx) == count(r"cp\.async\.bulk\.\S*multicast::cluster", ptx) == 1
    assert count(r"mbarrier\.arrive\.expect_tx", ptx) == 1


def check_barriers(ptx, constants):
    registers = re.findall(r"mbarrier\.init\.shared\S* \t?\[[^\]]*\], (%r\d+);", ptx)
    values = [int(re.search(rf"mov\.b32 \t{re.escape(register)}, (\d+);", ptx)[1]) for register in registers]
    weights = [constants.WEIGHT_THREADS, constants.CONSUMER_WARPS] * constants.WEIGHT_STAGES
    tokens = [1, constants.CONSUMER_WARPS * constants.CLUSTER] * constants.TOKEN_STAGES
    assert values == weights + tokens
    # Once between the initialisation and the first use, once before leaving.
    assert count(r"barrier\.cluster\.arrive", ptx) == count(r"barrier\.cluster\.wait", ptx) == 2
    assert ptx.index("fence.mbarrier_init") < ptx.index("barrier.cluster.arrive") < ptx.index("mbarrier.try_wait")


def check_overlap_of_launches(ptx):
    """The first kernel lets the second start; what the first writes is copied only after the second has waited."""
    assert count(r"griddepcontrol\.launch_dependents", ptx) == count(r"griddepcontrol\.wait", ptx) == 1
    assert ptx.index("griddepcontrol.wait") < ptx.index("fence.proxy.async.global") < ptx.index("cp.async.bulk")


def check_epilogue(ptx, constants):
    pairs = sum(width // 4 for width in widths(constants))
    assert count(r"cvt\.\w+\.f16\S*\.f32", ptx) == count(r"cvt\.rn\.f16x2\.f32", ptx) == pairs
    guarded = r"setp\.lt\.s32 p, %r\d+, %r\d+; @p st\.global\.b32 \[%rd\d+\], %r\d+;"
    assert count(r"st\.global\.b32", ptx) == count(guarded, ptx) == pairs


def test_wgmma_takes_weights_from_registers(artifacts):
    check_wgmma(artifacts.ptx, artifacts.constants)
    with pytest.raises(AssertionError):
        check_wgmma(artifacts.ptx.replace("m64n72k16", "m64n80k16"), artifacts.constants)
    with pytest.raises(AssertionError):
        check_wgmma(re.sub(r", \{(%r\d+), %r\d+, %r\d+, %r\d+\}, ", r", \1, ", artifacts.ptx), artifacts.constants)


def test_copies_fill_a_stage(artifacts):
    check_copies(artifacts.ptx, artifacts.constants)
    with pytest.raises(AssertionError):
        check_copies(artifacts.ptx.replace("], 16;", "], 8;"), artifacts.constants)
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


def check_wgmma_is_asynchronous(sass, constants):
    """ptxas kept two groups in flight: where it cannot, it waits for each wgmma by itself and only says so."""
    instances = len(widths(constants))
    assert count(r"\bHGMMA\.64x\d+x16\.F32", sass) == 16 * instances
    assert count(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1\b", sass) == 4 * instances
    assert count(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0\b", sass) == instances


def check_registers(sass, usage, constants):
    assert count(r"\b(?:LDL|STL)\b", sass) == 0
    assert set(re.findall(r"\b(?:STACK|LOCAL):(\d+)", usage)) == {"0"}
    # At entry every thread has what the consumers and the producers share out by setmaxnreg.
    at_entry = max(int(registers) for registers in re.findall(r"\bREG:(\d+)", usage))
    shared_out = constants.PRODUCER_REGISTERS + constants.CONSUMERS * constants.CONSUMER_REGISTERS
    assert shared_out <= at_entry * (1 + constants.CONSUMERS) <= SM_REGISTERS / 128
    most = max(int(register) for register in re.findall(r"\bR(\d+)\b", sass))
    assert most < constants.CONSUMER_REGISTERS


def test_wgmma_is_not_serialised(artifacts):
    check_wgmma_is_asynchronous(artifacts.sass, artifacts.constants)
    with pytest.raises(AssertionError):
        check_wgmma_is_asynchronous(artifacts.sass.replace("gsb0, 0x1", "gsb0, 0x0", 1), artifacts.constants)


def test_no_spills_and_registers_as_shared_out(artifacts):
    check_registers(artifacts.sass, artifacts.usage, artifacts.constants)
    with pytest.raises(AssertionError):
        check_registers(artifacts.sass + "\tSTL [R1], R2 ;", artifacts.usage, artifacts.constants)
    with pytest.raises(AssertionError):
        check_registers(artifacts.sass + "\tMOV R232, R2 ;", artifacts.usage, artifacts.constants)
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


def numpy_ptx(text, _constraints, *operands, results=1, pure=False):
    """What the PTX of the decoding functions does, on uint32 arrays."""
    assert (results, pure) == (1, True)
    a, b = np.asarray(operands[0], np.uint32), np.asarray(operands[-1], np.uint32)
    if text.startswith("mul.rn.f16x2"):
        a, b = np.broadcast_arrays(a, b)
        return (a.copy().view(np.float16) * b.copy().view(np.float16)).view(np.uint32)
    if text.startswith("lop3.b32"):
        assert int(re.search(r"(0x\w+);$", text)[1], 16) == (0xF0 & 0xAA) | (0xCC & ~0xAA & 0xFF)
        return (a & b) | (np.asarray(operands[1], np.uint32) & ~b)
    if text.startswith("prmt.b32"):
        selector = int(re.search(r"(\w+);$", text)[1], 0)
        bytes_of = np.concatenate([x.reshape(-1, 1).copy().view(np.uint8) for x in np.broadcast_arrays(a, b)], axis=1)
        return bytes_of[:, [selector >> 4 * i & 7 for i in range(4)]].copy().view(np.uint32)[:, 0]
    assert "cvt.rn.f16x2.e4m3x2" in text
    return scale_value(a.reshape(-1, 1).copy().view(np.uint8)[:, :2]).astype(np.float16).view(np.uint32)[:, 0]


def scale_value(codes):
    """E4M3 as torch reads it, its sign too."""
    return np.where(E4M3.is_nan(codes), np.nan, E4M3.decode_units(codes) * 2.0**-9)


def decoded(kernel):
    """[256 scale codes, 16 element codes, 8 places] as float64, in units of the operand, by the kernel's functions."""
    elements = np.arange(16, dtype=np.uint32)
    # Place p has code c while the other seven have 15 - c, all of whose bits differ.
    words = np.stack(
        [(elements << 4 * p) | sum((15 - elements) << 4 * q for q in range(8) if q != p) for p in range(8)]
    )
    result = np.empty((256, 16, 8))
    for code in range(256):
        scale = kernel.permute_bytes(kernel.decode_scales(np.uint32(code)), np.uint32(0), 0x1010)
        pairs = np.stack([pair.view(np.float16).reshape(8, 16, 2) for pair in kernel.decode(words, scale)])
        for place in range(8):
            result[code, :, place] = pairs[place % 4, place, :, place // 4] * 2.0**7
    return result


def check_decoding(kernel):
    codes = np.arange(256, dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        want = scale_value(codes)[:, None] * E2M1.decode_units(np.arange(16, dtype=np.uint8)) / 2
        got = decoded(kernel)
    np.testing.assert_array_equal(got, np.broadcast_to(want[:, :, None], got.shape))


def load_decoder(**kwargs):
    return load(ptx=numpy_ptx, Uint32=np.uint32, **kwargs)


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


def check_plan(kernel, sizes, workers):
    """Every output in exactly one item, every token dequantised once to lines of its own, lists as the kernel reads."""
    tiles, work, first, ctas, lines = kernel.plan(sizes, workers)
    tokens = {}
    next_cta = next_line = 0
    for cta, group, start, rows, line, units in tiles:
        _, n, k, _ = sizes[group]
        assert (cta, line, units * kernel.UNIT_K) == (next_cta, next_line, k)
        assert 0 < rows <= kernel.MAX_WIDTH
        assert n > 0
        next_cta += -(-rows * units // kernel.DEQUANTISE_ROWS)
        next_line += rows * k * 2 // kernel.LINE
        for row in range(start, start + rows):
            assert tokens.setdefault((group, row), line) == line, "a token is in two tiles"
    assert (next_cta, next_line) == (ctas, lines)
    assert set(tokens) == {(g, row) for g, (m, n, _, _) in enumerate(sizes) if n for row in range(m)}

    assert first[0] == 0
    assert first[-1] == len(work)
    assert 0 < len(first) - 1 <= workers
    done = set()
    for begin, end in itertools.pairwise(first):
        assert end - begin > 1, "a cluster without work"
        assert work[end - 1] == (0,) * kernel.WORK_COLUMNS
        items = work[begin : end - 1]
        assert [item[kernel.WIDTH] for item in items] == sorted((item[kernel.WIDTH] for item in items), reverse=True)
        for width, group, start, rows, line, units, block, blocks in items:
            assert width in widths(kernel)
            assert rows <= width
            assert tokens[group, start] == tokens[group, start + rows - 1] == line
            assert (units * kernel.UNIT_K, blocks * kernel.WEIGHT_ROWS) == (sizes[group][2], sizes[group][1])
            for rank in range(kernel.CLUSTER):
                if block + rank < blocks:
                    assert (line, block + rank) not in done, "a tile is computed twice"
                    done.add((line, block + rank))
    assert len(done) == sum(sizes[group][1] // kernel.WEIGHT_ROWS for _, group, *_ in tiles)


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


@pytest.mark.parametrize(
    ("edit", "workers"),
    [
        (swap("one.sort(key=lambda item: -item[0])", "one.sort(key=lambda item: item[0])"), 2),
        (swap("work.append((0,) * WORK_COLUMNS)", "pass"), 2),
        (swap("min(width, m - start)", "width"), 2),
        (swap("for block in range(0, n // WEIGHT_ROWS, CLUSTER)", "for block in range(0, n // WEIGHT_ROWS)"), 2),
        (swap("line += rows * units * ATOMS_PER_UNIT", "line += rows * units"), 2),
        (swap("for one in filter(None, lists):", "for one in lists:"), 66),
    ],
    ids=["order", "end", "ragged", "twice", "overlap", "idle"],
)
def test_wrong_plans_are_caught(edit, workers):
    sizes = [(40, 384, 256, 1), (200, 128, 512, 1), (16, 128, 256, 1)]
    check_plan(load(), sizes, workers)
    with pytest.raises(AssertionError):
        check_plan(load(edit=edit), sizes, workers)


@pytest.mark.parametrize(
    "group", [(-1, 128, 256, 1), (8, 64, 256, 1), (8, 128, 0, 1), (8, 128, 128, 1), (8, 128, 256, 2)]
)
def test_problems_outside_the_contract_are_refused(group):
    with pytest.raises(ValueError, match=r"group 1 is \(m, n, k, l\)"):
        load().check_problem([(8, 128, 256, 1), group])

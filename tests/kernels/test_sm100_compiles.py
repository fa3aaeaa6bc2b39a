"""Compile the sm_100a grouped GEMM without a GPU and check what its PTX and CUBIN say."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

KERNEL = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm" / "sm100.py"

# Two CTAs of 192 threads share the SM's 65,536 registers; they are given out per warp, in units of 8 a thread.
MAX_REGISTERS = 65536 // (2 * 192) // 8 * 8


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """PTX text, CUBIN path and the kernel's integer constants."""
    folder = tmp_path_factory.mktemp("sm100")
    dump = folder / "dump"
    dump.mkdir()
    (folder / "task.py").write_text(
        "from typing import TypeVar\ninput_t = TypeVar('input_t')\noutput_t = TypeVar('output_t')\n"
    )
    environment = {
        **os.environ,
        "CUTE_DSL_ARCH": "sm_100a",
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        "CUTE_DSL_DRYRUN": "0",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_KEEP_CUBIN": "1",
        "CUTE_DSL_DUMP_DIR": str(dump),
        "PYTHONPATH": os.pathsep.join([str(folder), str(KERNEL.parent)]),
    }
    command = [sys.executable, "-c", "import sm100; sm100.compile_kernel([(40, 128, 256, 1)])"]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    ptx, cubin = list(dump.glob("*.ptx")), list(dump.glob("*.cubin"))
    # CuTe DSL 4.4 fails after both are written when there is no driver, so the files decide.
    assert len(ptx) == len(cubin) == 1, f"no PTX or no CUBIN in {dump}:\n{result.stdout}\n{result.stderr}"
    constants = {}
    for node in ast.parse(KERNEL.read_text()).body:
        if isinstance(node, ast.Assign) and "_DTYPE" not in ast.unparse(node.targets[0]):
            exec(compile(ast.Module([node], []), str(KERNEL), "exec"), constants)
    return SimpleNamespace(
        ptx=ptx[0].read_text().replace("\0", ""), cubin=cubin[0], constants=SimpleNamespace(**constants)
    )


def count(pattern, ptx):
    return len(re.findall(pattern, ptx))


def position(pattern, ptx):
    """Line of the only match; AssertionError if there is none or more than one."""
    lines = [number for number, line in enumerate(ptx.splitlines()) if re.search(pattern, line)]
    assert len(lines) == 1, f"{pattern!r} is on lines {lines}"
    return lines[0]


def check_mma(ptx):
    assert count(r"\ttcgen05\.mma\.cta_group::1\.kind::mxf4nvf4\.block_scale\.(?:block16|scale_vec::4X)", ptx) == 4
    assert count(r"\ttcgen05\.mma", ptx) == 4
    # Instruction descriptor: E2M1 for A (bits 7-9) and B (10-12), N / 8 (17-22), E4M3 scales (23 = 0), M / 16 (24-28).
    descriptor = 1 << 7 | 1 << 10 | 128 // 8 << 17 | 128 // 16 << 24
    assert count(rf"\b{descriptor}\b", ptx) >= 1


def check_scale_factor_copies(ptx):
    # 512 bytes each: four k-blocks of A's scales and four of B's.
    assert count(r"\ttcgen05\.cp\.cta_group::1\.32x128b\.warpx4", ptx) == 8


def check_tma(ptx):
    loads = r"\tcp\.async\.bulk\.tensor\.%dd\.shared::\w+\.global\.tile\.mbarrier::complete_tx::bytes"
    assert count(loads % 2, ptx) == 2  # A, B
    assert count(loads % 3, ptx) == 2  # SFA, SFB
    assert count(r"\tcp\.async\.bulk", ptx) == 4
    # What lands in a stage: two 128 x 256 tiles of 4 bits, and a byte for every 16 elements of both.
    announced = re.findall(r"mov\.b32 \t(%r\d+), (\d+);\n\tmbarrier\.arrive\.expect_tx[^;]*, \1;", ptx)
    assert [int(size) for _, size in announced] == [2 * 128 * 256 // 2 + 2 * 128 * 256 // 16]
    assert count(r"\tmbarrier\.arrive", ptx) == 1


def check_tensormaps(ptx):
    released = re.findall(r"tensormap\.cp_fenceproxy\S*release\.gpu\.sync\.aligned \[(%rd\d+)\], \[%r\d+\], 128;", ptx)
    acquired = re.findall(r"fence\.proxy\.tensormap::generic\.acquire\.gpu \[(%rd\d+)\], 128;", ptx)
    used = re.findall(r"cp\.async\.bulk\.tensor\S* \[[^\]]*\], \[(%rd\d+),", ptx)
    assert len(set(released)) == 4
    assert set(released) == set(acquired) == set(used)
    assert count(r"tensormap\.replace\.tile\.global_address", ptx) == 4
    last_release = max(m.start() for m in re.finditer(r"tensormap\.cp_fenceproxy", ptx))
    first_acquire = ptx.index("fence.proxy.tensormap::generic.acquire")
    assert "bar.sync" in ptx[last_release:first_acquire]


def check_barriers(ptx, stages):
    arrivals = re.findall(r"mbarrier\.init\.shared\S* \t?\[[^\]]*\], (%r\d+);", ptx)
    assert len(arrivals) == 2 * stages + 1
    assert len(set(arrivals)) == 1
    assert re.search(rf"mov\.b32 \t{re.escape(arrivals[0])}, 1;", ptx)
    assert count(r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one", ptx) == 2
    assert count(r"mbarrier\.try_wait\.parity", ptx) == 3
    assert position(r"fence\.mbarrier_init", ptx) < position_of_first(r"\tbar\.sync", ptx)
    assert count(r"\tbar\.sync", ptx) == 2


def position_of_first(pattern, ptx):
    return next(number for number, line in enumerate(ptx.splitlines()) if re.search(pattern, line))


def check_tmem(ptx, columns):
    sizes = re.findall(r"mov\.b32 \t(%r\d+), (\d+);\n\ttcgen05\.(alloc|dealloc)\S*[^;]*, \1;", ptx)
    assert [(kind, int(size)) for _, size, kind in sizes] == [("alloc", columns), ("dealloc", columns)]
    order = [
        position(r"tcgen05\.alloc", ptx),
        position(r"tcgen05\.relinquish_alloc_permit", ptx),
        position(r"tcgen05\.ld\.sync\.aligned\.32x32b\.x128", ptx),
        position(r"tcgen05\.wait::ld", ptx),
        position_of_first(r"cvt\.rn\.f16x2\.f32", ptx),
        position(r"tcgen05\.dealloc", ptx),
    ]
    assert order == sorted(order)


def check_epilogue(ptx):
    assert count(r"\tcvt\.\w+\.f16\S*\.f32", ptx) == count(r"\tcvt\.rn\.f16x2\.f32", ptx) == 64
    assert count(r"\tst\.global", ptx) == count(r"\tst\.global\.v4\.b64", ptx) == 8
    # Between the row's comparison with m and the label that skipped rows jump to lie all the stores.
    guarded = re.search(r"setp\.ge\.s32 \t(%p\d+), %r\d+, %r\d+;\n\t@\1 bra \t(\$\w+);(.*?)\n\2:", ptx, re.DOTALL)
    assert guarded is not None
    assert guarded[3].count("st.global") == 8


def check_no_local_memory(ptx):
    assert count(r"\.local\b", ptx) == 0


def test_mma(artifacts):
    check_mma(artifacts.ptx)
    with pytest.raises(AssertionError):
        check_mma(artifacts.ptx.replace("mxf4nvf4", "mxf4"))


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
    files = importlib.metadata.files("nvidia-cuda-cuobjdump")
    cuobjdump = next(Path(file.locate()) for file in files if file.name == "cuobjdump")
    usage = subprocess.run(
        [cuobjdump, "--dump-resource-usage", artifacts.cubin], capture_output=True, text=True, check=True
    ).stdout
    resources = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage))
    assert resources["STACK"] == resources["LOCAL"] == "0"
    assert int(resources["REG"]) <= MAX_REGISTERS


def test_two_ctas_fit_one_sm(artifacts):
    constants = artifacts.constants
    assert constants.NUM_STAGES == 3
    assert 2 * constants.TMEM_COLUMNS == 512
    assert 2 * (1024 + constants.CONTROL_BYTES + constants.NUM_STAGES * constants.STAGE_BYTES) <= 228 * 1024
    assert 2 * (1024 + constants.CONTROL_BYTES + (constants.NUM_STAGES + 1) * constants.STAGE_BYTES) > 228 * 1024

"""Check the PTX of ``steps/map_updates.py``."""

from __future__ import annotations

import re

from tests.kernels.compiled import count, position, positions


def check_mma(ptx: str) -> None:
    assert count(r"\ttcgen05\.mma\.cta_group::1\.kind::mxf4nvf4\.block_scale\.(?:block16|scale_vec::4X)", ptx) == 4
    assert count(r"\ttcgen05\.mma", ptx) == 4
    # Instruction descriptor: E2M1 for A (bits 7-9) and B (10-12), N / 8 (17-22), E4M3 scales (23 = 0), M / 16 (24-28).
    descriptor = 1 << 7 | 1 << 10 | 128 // 8 << 17 | 128 // 16 << 24
    assert count(rf"\b{descriptor}\b", ptx) >= 1


def check_scale_factor_copies(ptx: str) -> None:
    # 512 bytes each: four k-blocks of A's scales and four of B's.
    assert count(r"\ttcgen05\.cp\.cta_group::1\.32x128b\.warpx4", ptx) == 8


def check_tma(ptx: str) -> None:
    loads = r"\tcp\.async\.bulk\.tensor\.%dd\.shared::\w+\.global\.tile\.mbarrier::complete_tx::bytes"
    assert count(loads % 2, ptx) == 2  # A, B
    assert count(loads % 3, ptx) == 2  # SFA, SFB
    assert count(r"\tcp\.async\.bulk", ptx) == 4
    # What lands in a stage: two 128 x 256 tiles of 4 bits, and a byte for every 16 elements of both.
    announced = re.findall(r"mov\.b32 \t(%r\d+), (\d+);\n\tmbarrier\.arrive\.expect_tx[^;]*, \1;", ptx)
    assert [int(size) for _, size in announced] == [2 * 128 * 256 // 2 + 2 * 128 * 256 // 16]
    assert count(r"\tmbarrier\.arrive", ptx) == 1


def check_tensormaps(ptx: str) -> None:
    released = re.findall(r"tensormap\.cp_fenceproxy\S*release\.gpu\.sync\.aligned \[(%rd\d+)\], \[%r\d+\], 128;", ptx)
    acquired = re.findall(r"fence\.proxy\.tensormap::generic\.acquire\.gpu \[(%rd\d+)\], 128;", ptx)
    used = re.findall(r"cp\.async\.bulk\.tensor\S* \[[^\]]*\], \[(%rd\d+),", ptx)
    assert len(set(released)) == 4
    assert set(released) == set(acquired) == set(used)
    assert count(r"tensormap\.replace\.tile\.global_address", ptx) == 4
    last_release = max(m.start() for m in re.finditer(r"tensormap\.cp_fenceproxy", ptx))
    first_acquire = ptx.index("fence.proxy.tensormap::generic.acquire")
    assert "bar.sync" in ptx[last_release:first_acquire]


def check_barriers(ptx: str, stages: int) -> None:
    arrivals = re.findall(r"mbarrier\.init\.shared\S* \t?\[[^\]]*\], (%r\d+);", ptx)
    assert len(arrivals) == 2 * stages + 1
    assert len(set(arrivals)) == 1
    assert re.search(rf"mov\.b32 \t{re.escape(arrivals[0])}, 1;", ptx)
    assert count(r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one", ptx) == 2
    assert count(r"mbarrier\.try_wait\.parity", ptx) == 3
    assert position(r"fence\.mbarrier_init", ptx) < positions(r"\tbar\.sync", ptx)[0]
    assert count(r"\tbar\.sync", ptx) == 2


def check_tmem(ptx: str, columns: int) -> None:
    sizes = re.findall(r"mov\.b32 \t(%r\d+), (\d+);\n\ttcgen05\.(alloc|dealloc)\S*[^;]*, \1;", ptx)
    assert [(kind, int(size)) for _, size, kind in sizes] == [("alloc", columns), ("dealloc", columns)]
    order = [
        position(r"tcgen05\.alloc", ptx),
        position(r"tcgen05\.relinquish_alloc_permit", ptx),
        position(r"tcgen05\.ld\.sync\.aligned\.32x32b\.x128", ptx),
        position(r"tcgen05\.wait::ld", ptx),
        positions(r"cvt\.rn\.f16x2\.f32", ptx)[0],
        position(r"tcgen05\.dealloc", ptx),
    ]
    assert order == sorted(order)


def check_epilogue(ptx: str) -> None:
    assert count(r"\tcvt\.\w+\.f16\S*\.f32", ptx) == count(r"\tcvt\.rn\.f16x2\.f32", ptx) == 64
    assert count(r"\tst\.global", ptx) == count(r"\tst\.global\.v4\.b64", ptx) == 8
    # Between the row's comparison with m and the label that skipped rows jump to lie all the stores.
    guarded = re.search(r"setp\.ge\.s32 \t(%p\d+), %r\d+, %r\d+;\n\t@\1 bra \t(\$\w+);(.*?)\n\2:", ptx, re.DOTALL)
    assert guarded is not None
    assert guarded[3].count("st.global") == 8


def check_no_local_memory(ptx: str) -> None:
    assert count(r"\.local\b", ptx) == 0

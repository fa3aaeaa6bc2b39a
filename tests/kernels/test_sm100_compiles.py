"""Compile the grouped GEMM for sm_100a without a GPU and check what its PTX and CUBIN say."""

from __future__ import annotations

import re

import pytest

from tests.kernels.compiled import compile_gemm, count, position, positions
from tests.kernels.map_updates_checks import check_no_local_memory
from tests.kernels.test_sm100_map import load

MAX_REGISTERS = 65536 // 224 // 8 * 8


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return compile_gemm(tmp_path_factory.mktemp("sm100"), "sm100", "sm_100a", load())


def check_pairs(ptx: str) -> None:
    """Four MMAs of 64 of K and the copies of their scales are of pairs of CTAs; tensor memory is theirs and freed."""
    assert count(r"\ttcgen05\.mma|\{ \.reg \.pred p;.*tcgen05\.mma\.cta_group::2\.kind::mxf4nvf4", ptx) == 4
    assert count(r"tcgen05\.cp\.cta_group::2\.32x128b\.warpx4", ptx) == 8
    assert count(r"tcgen05\.\w+\.cta_group::1", ptx) == 0
    sizes = re.findall(r"mov\.b32 \t(%r\d+), (\d+);\n\ttcgen05\.(alloc|dealloc)\S*[^;]*, \1;", ptx)
    assert [(kind, int(size)) for _, size, kind in sizes] == [("alloc", 512), ("dealloc", 512)]
    assert position(r"\ttcgen05\.dealloc", ptx) > max(positions(r"\ttcgen05\.ld", ptx))


def check_maps(ptx: str) -> None:
    """Tensor maps are parameters: none is changed or fenced."""
    assert count(r"tensormap", ptx.partition(".visible .entry")[2]) == 0
    assert count(r"cp\.async\.bulk\.tensor\.2d\.[\w.:]*cta_group::2", ptx) >= 3
    assert count(r"cp\.async\.bulk\.tensor\.2d\.[\w.:]*multicast::cluster", ptx) >= 1


def check_launch(ptx: str) -> None:
    """The copies wait for the kernel before, and all that follows may start early."""
    assert count(r"\tgriddepcontrol\.launch_dependents", ptx) >= 1
    first = positions(r"\tcp\.async\.bulk\.tensor", ptx)[0]
    assert positions(r"\tgriddepcontrol\.wait", ptx)[0] < first


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_pairs, "tcgen05.mma.cta_group::2", "tcgen05.mma.cta_group::1"),
        (check_pairs, "32x128b.warpx4", "32x128b"),
        (check_pairs, "tcgen05.dealloc", "tcgen05.nothing"),
        (check_maps, "multicast::cluster", "multicast"),
        (check_maps, ".2d.shared", ".3d.shared"),
        (check_launch, "griddepcontrol.wait", "nothing"),
        (check_launch, "griddepcontrol.launch_dependents", "nothing"),
    ],
)
def test_the_ptx(artifacts, check, old, new):
    check(artifacts.ptx)
    assert old in artifacts.ptx
    with pytest.raises((AssertionError, IndexError)):
        check(artifacts.ptx.replace(old, new))


def test_no_spills_and_registers_for_seven_warps(artifacts):
    check_no_local_memory(artifacts.ptx)
    resources = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", artifacts.usage))
    assert resources["STACK"] == resources["LOCAL"] == "0"
    assert int(resources["REG"]) <= MAX_REGISTERS

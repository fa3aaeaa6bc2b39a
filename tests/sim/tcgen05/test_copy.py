"""``tcgen05.cp`` and ``tcgen05.commit``."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile
from pytest_nvfp4.sim.tcgen05.commit import commit
from pytest_nvfp4.sim.tcgen05.copy import copy
from pytest_nvfp4.sim.tcgen05.copy_plan import CopyShape
from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.a_in_tmem import in_containers
from tests.sim.tcgen05.copy_case import matrix_in_shared
from tests.sim.tcgen05.harness import make_ctas, matrix_bits, own

# For each shape: the TMEM lanes of a source row, from the words of the ISA.
LANES = {
    (128, ""): lambda row: [row],
    (4, ""): lambda row: [32 * row],
    (64, "warpx2::02_13"): lambda row: [row, row + 64],
    (64, "warpx2::01_23"): lambda row: [64 * (row // 32) + row % 32, 64 * (row // 32) + 32 + row % 32],
    (32, "warpx4"): lambda row: [row + 32 * q for q in range(4)],
}
SHAPES = [
    (128, 256, ""),
    (4, 256, ""),
    (128, 128, ""),
    (64, 128, "warpx2::02_13"),
    (64, 128, "warpx2::01_23"),
    (32, 128, "warpx4"),
]


@pytest.mark.parametrize(("rows", "bits", "multicast"), SHAPES)
@pytest.mark.parametrize("swizzle", [0, 2, 6])
def test_every_shape(rows: int, bits: int, multicast: str, swizzle: int) -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    value, data = matrix_in_shared(cta, 2048, rows, bits // 8, swizzle, rows)
    before = tmem.data.copy()
    copy(cta.warps[0], 1 << 7, 40, value, CopyShape(rows, bits, multicast, 1, "cp"), 0)
    want = before
    for row in range(rows):
        words = data[row].view(np.uint32)
        for lane in LANES[rows, multicast](row):
            want[40 : 40 + bits // 32, lane] = words
    assert (tmem.data == want).all()
    assert cta.launch.counters["tcgen05.cp.bytes"] == rows * bits // 8
    if rows == 4:
        with pytest.raises(Fault, match="lane 1 of TMEM column 40"):
            tmem.need(40, 8, what="test")
    else:
        tmem.need(40, bits // 32, what="test")


@pytest.mark.parametrize(("form", "bits"), [("e2m1", 4), ("e3m2", 6)])
@pytest.mark.parametrize(("rows", "wide", "multicast"), SHAPES)
def test_a_decompressing_copy_puts_each_element_into_the_middle_of_a_byte(
    form: str, bits: int, rows: int, wide: int, multicast: str
) -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    value, data = matrix_in_shared(cta, 2048, rows, wide // 8, 2, rows)
    copy(cta.warps[0], 1, 40, value, CopyShape(rows, wide, multicast, 1, "cp", bits), 0)
    want = in_containers(form, data) & {4: 0x3C, 6: 0x7E}[bits]
    for row in range(rows):
        for lane in LANES[rows, multicast](row):
            assert (tmem.data[40 : 40 + wide // 32, lane] == want[row].view("<u4")).all()


def test_a_pair_copies_from_its_own_memories() -> None:
    ctas = make_ctas(2)
    datas = []
    for rank, cta in enumerate(ctas):
        own(cta)
        value, data = matrix_in_shared(cta, 2048, 32, 16, 0, rank)
        datas.append(data)
    copy(ctas[0].warps[0], 1, 0, value, CopyShape(32, 128, "warpx4", 2, "cp"), 0)
    for cta, data in zip(ctas, datas, strict=True):
        assert (data.view(np.uint32) == cta.unit(Tmem).data[:4, 96:].T).all()


def test_lanes_with_the_same_operands_are_reported_and_copy_once() -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    value, data = matrix_in_shared(cta, 2048, 32, 16, 0, 1)
    copy(cta.warps[0], 0b1010, 0, np.full(32, value), CopyShape(32, 128, "warpx4", 1, "cp"), 0)
    assert (data.view(np.uint32) == tmem.data[:4, :32].T).all()
    core = cta.unit(TensorCore)
    assert core.counters["tcgen05.cp.instructions"] == 1
    ((kind, message),) = reports = cta.launch.reports  # type: ignore[attr-defined]
    assert kind == "multi-lane"
    assert "issued by 2 lanes of warp 0 (1, 3) with the same operands" in message
    assert "tracks those of its own thread alone" in message
    cta.unit(MbarrierFile).init(0, 3, what="test")
    for lane, kinds in ((1, ["multi-lane"]), (2, ["multi-lane", "commit"])):  # lane 2 has nothing to commit
        commit(cta.warps[0], 1 << lane, 1024, None, 1, False, 0)
        assert [kind for kind, _ in reports] == kinds


@pytest.mark.parametrize(
    ("mask", "address", "kind"),
    [
        *((3, np.arange(32), "multi-lane"), (1, 510, "tmem")),
        *((3, 510, "tmem"), (1, 1 << 16, "tmem"), (1, 0, "uninitialised")),
    ],
)
def test_what_is_found(mask: int, address: Bits, kind: str) -> None:
    [cta] = make_ctas()
    own(cta)
    value = matrix_bits(2048, stride=128)
    if kind != "uninitialised":
        cta.shared.written[:] = True
    with pytest.raises(Fault) as caught:
        copy(cta.warps[0], mask, address, value, CopyShape(32, 128, "warpx4", 1, "cp"), 0)
    assert caught.value.kind == kind


@pytest.mark.parametrize(("rows", "bits", "multicast"), [shape for shape in SHAPES if shape[0] != 4])
def test_words_that_nothing_has_written_are_not_defined_behind_a_copy_of_others(
    rows: int, bits: int, multicast: str
) -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    value, _ = matrix_in_shared(cta, 2048, rows, bits // 8, 0, 1)
    lost = {(row, 1) for row in range(rows)} | {(3, 0)}
    places = [1024 + row // 8 * 128 + row % 8 * 16 + 4 * word + 2 for row, word in lost]
    cta.shared.written[places] = False
    shape = CopyShape(rows, bits, multicast, 1, "cp")
    copy(cta.warps[0], 1, 40, value, shape, 0)
    known = ~tmem.unwritten(*np.ogrid[40 : 40 + bits // 32, :128])  # type: ignore[arg-type]
    for row, word in np.ndindex(rows, bits // 32):
        assert (known[word, LANES[rows, multicast](row)] == ((row, word) not in lost)).all()
    with pytest.raises(Fault, match=r"cp: byte \d+ of shared memory .* was never written"):
        tmem.need(40, 2, what="test")
    tmem.need(40, 2, what="test", undefined=True)
    cta.shared.written[places] = True
    copy(cta.warps[0], 1, 40, value, shape, 0)
    tmem.need(40, bits // 32, what="test")


def test_a_commit_arrives_after_what_came_before() -> None:
    lazy = Lazy()
    [cta] = make_ctas(asynchronous=lazy)
    tmem = own(cta)
    barrier = cta.unit(MbarrierFile).init(0, 1, what="test")
    value, data = matrix_in_shared(cta, 2048, 32, 16, 0, 1)
    copy(cta.warps[0], 1, 0, value, CopyShape(32, 128, "warpx4", 1, "cp"), 0)
    commit(cta.warps[0], 1, 1024, None, 1, False, 0)
    assert barrier.phase == 0
    assert lazy.step()
    assert (data.view(np.uint32) == tmem.data[:4, :32].T).all()
    assert barrier.phase == 0
    assert lazy.step()
    assert barrier.phase == 1


def test_a_commit_takes_the_lower_half_of_an_address_without_a_state_space() -> None:
    [cta] = make_ctas()
    barrier = cta.unit(MbarrierFile).init(0, 2, what="test")
    for address in (1024, SHARED_WINDOW | 1024):
        commit(cta.warps[0], 1, address, None, 1, True, 0)
    assert barrier.phase == 1
    with pytest.raises(Fault, match="is not in shared memory"):
        commit(cta.warps[0], 1, 1 << 40 | 1024, None, 1, True, 0)


def test_a_commit_to_several_ctas() -> None:
    ctas = make_ctas(4)
    barriers = [cta.unit(MbarrierFile).init(64, 2, what="test") for cta in ctas]
    commit(ctas[0].warps[0], 1, 1024 + 64, 0b1011, 2, False, 0)
    assert [barrier.pending for barrier in barriers] == [1, 1, 2, 1]
    commit(ctas[0].warps[0], 1, ctas[2].shared.base + 64, None, 2, False, 0)
    assert [barrier.pending for barrier in barriers] == [1, 1, 1, 1]


def test_a_commit_needs_a_barrier_and_one_lane() -> None:
    [cta] = make_ctas()
    with pytest.raises(Fault, match="no mbarrier"):
        commit(cta.warps[0], 1, 1024, None, 1, False, 0)
    cta.unit(MbarrierFile).init(0, 1, what="test")
    with pytest.raises(Fault, match="2 lanes"):
        commit(cta.warps[0], 3, 1024, None, 1, False, 0)
    with pytest.raises(Fault, match="mask of the multicast is 0"):
        commit(cta.warps[0], 1, 1024, 1 << 16, 1, False, 0)

"""``tcgen05.ld`` and ``.st``: shapes against CUTLASS's copy traits as layouts; round trips; what is found."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.uses import Uses
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.following import FollowedValues
from pytest_nvfp4.sim.tcgen05.loadstore import load, movement, store
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.harness import FULL, make_ctas, own
from tests.sim.tcgen05.mma_case import run

# (thread modes), (value modes) as (extent, stride) in bits of a row-major image of .x1; its rows have ROW bits.
# The repeat adds a value mode of stride 32 * columns, which is how the traits of .xN continue those of .x1.
TRAITS = {
    "32x32b": ([(32, 32)], [(32, 1)], 32),
    "16x64b": ([(2, 512), (2, 32), (8, 64)], [(32, 1)], 64),
    "16x128b": ([(4, 32), (8, 128)], [(32, 1), (2, 1024)], 128),
    "16x256b": ([(4, 64), (8, 256)], [(64, 1), (2, 2048)], 256),
}


def _evaluate(modes: list[tuple[int, int]], index: int) -> int:
    total = 0
    for extent, stride in modes:
        total += index % extent * stride
        index //= extent
    return total


@pytest.mark.parametrize("shape", list(TRAITS))
@pytest.mark.parametrize("repeat", [1, 2, 8])
def test_the_shapes_are_those_of_the_traits(shape: str, repeat: int) -> None:
    threads, values, row = TRAITS[shape]
    move = movement(shape, repeat)
    bits = 1
    for extent, _ in values:
        bits *= extent
    per = bits // 32
    assert move.registers == per * repeat
    for register, lane in product(range(move.registers), range(32)):
        times, inside = divmod(register, per)
        offset = _evaluate(threads, lane) + _evaluate(values, 32 * inside)
        lane_of, bit = divmod(offset, row)
        assert move.lanes[register, lane] == lane_of
        assert move.columns[register, lane] == times * row // 32 + bit // 32


def test_the_two_halves_of_16x32bx2() -> None:
    move = movement("16x32bx2", 4, split=20)
    for register, lane in product(range(4), range(32)):
        assert move.lanes[register, lane] == lane % 16
        assert move.columns[register, lane] == register + (20 if lane >= 16 else 0)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([*TRAITS, "16x32bx2"]),
    power=st.integers(0, 5),
    packed=st.booleans(),
    warp=st.integers(0, 5),
    high=st.booleans(),
    column=st.integers(0, 60),
)
def test_every_word_comes_back(shape: str, power: int, packed: bool, warp: int, high: bool, column: int) -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    repeat = 1 << (power - 1 if packed and power else power)
    move = movement(shape, repeat, packed=packed, split=100 if shape == "16x32bx2" else 0)
    w = cta.warps[warp]
    lane = 32 * (warp % 4) + (16 if high and move.rows == 16 else 0)
    address = lane << 16 | column
    rng = np.random.default_rng(power)
    words = tuple(rng.integers(0, 1 << 32, 32, dtype=np.uint32) for _ in range(move.registers))
    before = tmem.data.copy()
    store(w, FULL, address, words, move, "st", 0)
    changed = np.argwhere(tmem.data != before)
    assert changed[:, 1].min() >= lane
    assert changed[:, 1].max() < lane + move.rows
    found = load(w, FULL, address, move, "ld", 0)
    assert all((a == b).all() for a, b in zip(found, words, strict=True))
    tmem.data[:] = 0
    assert all((a == b).all() for a, b in zip(found, words, strict=True)), "registers are copies"
    assert cta.launch.counters["tcgen05.ld.words"] == 32 * move.registers


def test_packing_takes_the_low_halves_of_neighbours() -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    tmem.data[:] = np.arange(512)[:, None] * 1000 + np.arange(128)[None, :] | 0xABC0_0000
    tmem.wrote(0, 512)
    move = movement("32x32b", 4, packed=True)
    found = load(cta.warps[1], FULL, 32 << 16 | 8, move, "ld", 0)
    for i, register in enumerate(found):
        low, high = tmem.data[8 + 2 * i, 32:64] & 0xFFFF, tmem.data[9 + 2 * i, 32:64] & 0xFFFF
        assert (register == low | high << 16).all()


def test_a_lane_may_name_the_row_that_it_reaches_and_no_other() -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    rows = np.arange(32, dtype=np.uint32) << np.uint32(16)
    words = (np.arange(32, dtype=np.uint32), 5)
    store(cta.warps[1], FULL, (32 << 16 | 3) + rows, words, movement("32x32b", 2), "st", 0)
    assert (tmem.data[3, 32:64] == words[0]).all()
    assert (tmem.data[4, 32:64] == 5).all()
    for wrong, shape in ((rows[::-1].copy(), "32x32b"), (rows >> np.uint32(16), "32x32b"), (rows, "16x64b")):
        with pytest.raises(Fault, match="differs between the lanes"):
            load(cta.warps[0], FULL, wrong, movement(shape, 1), "ld", 0)


def test_uniform_registers_are_stored_too() -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    store(cta.warps[0], FULL, 3, (7, 9), movement("32x32b", 2), "st", 0)
    assert (tmem.data[3, :32] == 7).all()
    assert (tmem.data[4, :32] == 9).all()


@pytest.mark.parametrize(
    ("warp", "address", "mask", "kind"),
    [
        (1, 16 << 16, FULL, "lane-quadrant"),
        (1, 64 << 16, FULL, "lane-quadrant"),
        (0, 32 << 16, FULL, "lane-quadrant"),
        (4, 32 << 16, FULL, "lane-quadrant"),
        (0, 16 << 16, FULL, "lane-quadrant"),
        (0, 160 << 16, FULL, "lane-quadrant"),
        (2, 160 << 16, FULL, "lane-quadrant"),
        (0, 0, 0xFFFF, "divergence"),
        (0, 500, FULL, "tmem"),
        (0, 64, FULL, "uninitialised"),
    ],
)
def test_what_is_found(warp: int, address: int, mask: int, kind: str) -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    tmem.wrote(0, 32)
    move = movement("32x32b", 16)
    load(cta.warps[0], FULL, 0, move, "ld", 0)
    with pytest.raises(Fault) as caught:
        load(cta.warps[warp], mask, address, move, "ld", 0)
    assert caught.value.kind == kind


def reports(cta: Cta) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = cta.launch.reports  # type: ignore[attr-defined]
    return said


@pytest.mark.parametrize("warp", [1, 2, 5])
@pytest.mark.parametrize("shape", ["32x32b", "16x64b"])
def test_an_address_without_a_quadrant_is_of_the_warp_s_own_and_worth_a_word(warp: int, shape: str) -> None:
    [cta] = make_ctas()
    tmem = own(cta)
    tmem.wrote(0, 32)
    tmem.data[:32] = np.arange(32 * 128, dtype=np.uint32).reshape(32, 128)
    move = movement(shape, 8)
    row = 16 if shape == "16x64b" else 0
    quadrant = 32 * (warp % 4)
    said = load(cta.warps[warp], FULL, quadrant + row << 16, move, "ld", 0)
    assert reports(cta) == []
    found = load(cta.warps[warp], FULL, row << 16, move, "ld", 0)
    assert all((one == other).all() for one, other in zip(found, said, strict=True))
    ((kind, message),) = reports(cta)
    assert kind == "own-quadrant"
    assert f"taken for lane {quadrant + row}" in message
    store(cta.warps[warp], FULL, row << 16, tuple(range(8)), movement(shape, 8), "st", 0)
    assert tmem.data[0, quadrant + row] == 0
    assert tmem.data[0, row] == row


@pytest.mark.parametrize("warp", [0, 1, 3, 5])
@pytest.mark.parametrize(("shape", "row"), [("32x32b", 0), ("16x64b", 16)])
def test_a_lane_behind_the_last_is_counted_from_the_first_and_worth_a_word(warp: int, shape: str, row: int) -> None:
    cta = make_ctas(2)[1]
    tmem = own(cta)
    tmem.wrote(0, 32)
    tmem.data[:32] = np.arange(32 * 128, dtype=np.uint32).reshape(32, 128)
    move = movement(shape, 8)
    lane = 32 * (warp % 4) + row
    found = load(cta.warps[warp], FULL, 128 + lane << 16, move, "ld", 0)
    assert all(
        (a == b).all() for a, b in zip(found, load(cta.warps[warp], FULL, lane << 16, move, "ld", 0), strict=True)
    )
    ((kind, message),) = reports(cta)
    assert kind == "own-quadrant"
    assert f"TMEM lane {128 + lane} by warp {warp}" in message
    assert f"taken for lane {lane}, here and wherever else this launch exceeds lane 127" in message
    store(cta.warps[warp], FULL, 128 + lane << 16, (7,) * move.registers, move, "st", 0)
    assert tmem.data[0, lane] == 7
    assert len(reports(cta)) == 1


def test_an_address_that_differs_between_lanes() -> None:
    [cta] = make_ctas()
    own(cta).wrote(0, 512)
    with pytest.raises(Fault, match="differs"):
        load(cta.warps[0], FULL, np.arange(32, dtype=np.uint32), movement("32x32b", 1), "ld", 0)


def test_a_load_of_64_rows_is_not_a_number_where_no_row_is() -> None:
    ctas = run("f16", "f16", "f16", m=64, n=8, count=1)[2]
    warps = ctas[0].warps
    tmem = ctas[0].unit(Tmem)
    used = False
    ctas[0].launch.program = SimpleNamespace(  # type: ignore[misc]
        uses=lambda at, _registers, **_: Uses(frozenset({at + 1}), loaded=frozenset({5})),
        frames=SimpleNamespace(behind=lambda *_, **__: (used, None)),
        watch=lambda _places: None,
    )
    for warp in (1, 3):
        words = load(warps[warp], FULL, 32 * warp << 16, movement("32x32b", 8), "ld", 0)
        for register, word in enumerate(words):
            assert (word[:16] == tmem.data[register, 32 * warp : 32 * warp + 16]).all()
            assert np.isnan(word[16:].view(np.float32)).all()
            assert np.isnan(word[16:].view(np.float16)).all()
    assert reports(ctas[0]) == []  # until a lane uses it
    assert [value.dependents for value in warps[3].unit(FollowedValues).values.values()] == [{5: 0xFFFF_0000}]
    used = True
    with pytest.raises(Fault, match="never written"):  # of no accumulator
        load(warps[1], FULL, 32 << 16, movement("32x32b", 16), "ld", 0)
    tmem.take(0, 8, 2)
    with pytest.raises(Fault, match="never written"):
        load(warps[1], FULL, 32 << 16, movement("32x32b", 8), "ld", 0)


def test_sixteen_lanes_do_not_initialise_the_others() -> None:
    [cta] = make_ctas()
    own(cta)
    w = cta.warps[2]
    store(w, FULL, 64 << 16, (1,), movement("16x64b", 1), "st", 0)
    load(w, FULL, 64 << 16, movement("16x64b", 1), "ld", 0)
    with pytest.raises(Fault, match="lane 80 of TMEM column 0 was never written") as caught:
        load(w, FULL, 64 << 16, movement("32x32b", 2), "ld", 0)
    assert "wait for the mbarrier of the tcgen05.commit" in str(caught.value.hint)


def test_two_allocations_are_not_one() -> None:
    [cta] = make_ctas()
    tmem = cta.unit(Tmem)
    tmem.take(0, 32, 1)
    tmem.take(32, 32, 2)
    tmem.wrote(0, 64)
    load(cta.warps[0], FULL, 0, movement("32x32b", 32), "ld", 0)
    load(cta.warps[0], FULL, 32, movement("32x32b", 32), "ld", 0)
    with pytest.raises(Fault, match=r"allocated: columns \[0, 32\), \[32, 64\)"):
        load(cta.warps[0], FULL, 16, movement("32x32b", 32), "ld", 0)

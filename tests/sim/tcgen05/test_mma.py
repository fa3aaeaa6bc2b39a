"""``tcgen05.mma`` of every kind against float64, with operands placed element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.descriptor import decode_instruction
from pytest_nvfp4.sim.tcgen05.loadstore import movement, store
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.mma_case import SFA, SFB, idesc, once, put, rounded, run
from tests.sim.tcgen05.places import k_major, lane_column

CASES = [
    ("f16", "f16", "f16", {}),
    ("f16", "bf16", "bf16", {"n": 8}),
    ("f16", "f16", "bf16", {"swizzle_a": 4, "swizzle_b": 6}),
    ("f16", "f16", "f16", {"swizzle_a": 0, "swizzle_b": 0, "n": 256}),
    ("f16", "f16", "f16", {"a_mn": True, "b_mn": True}),
    ("f16", "bf16", "f16", {"a_mn": True, "swizzle_a": 4, "b_mn": True, "swizzle_b": 0}),
    ("f16", "f16", "f16", {"b_mn": True, "swizzle_b": 6, "n": 128}),
    ("f16", "f16", "f16", {"negate": (1, 0)}),
    ("f16", "bf16", "f16", {"negate": (1, 1), "m": 64}),
    ("f16", "f16", "f16", {"m": 64, "lane": 16, "column": 32}),
    ("f16", "f16", "f16", {"m": 128, "group": 2, "n": 32}),
    ("f16", "bf16", "bf16", {"m": 256, "group": 2, "n": 64}),
    ("f16", "f16", "f16", {"m": 256, "group": 2, "n": 64, "b_mn": True, "swizzle_b": 4}),
    ("tf32", "tf32", "tf32", {}),
    ("tf32", "tf32", "tf32", {"m": 64, "n": 24}),
    ("tf32", "tf32", "tf32", {"a_mn": True, "swizzle_a": 1, "b_mn": True, "swizzle_b": 1}),
    ("f8f6f4", "e4m3", "e5m2", {}),
    ("f8f6f4", "e5m2", "e5m2", {"m": 64}),
    ("f8f6f4", "e2m3", "e3m2", {"n": 16}),
    ("f8f6f4", "e2m1", "e4m3", {"swizzle_a": 6}),
    ("f8f6f4", "e4m3", "e4m3", {"a_mn": True, "b_mn": True, "n": 128}),
    ("f8f6f4", "e4m3", "e4m3", {"m": 256, "group": 2, "n": 32}),
    *(
        ("f8f6f4", a, b, {"a_mn": a_mn, "b_mn": not a_mn or both, "swizzle_a": swizzle, "n": 128})
        for a, b, swizzle in (("e2m1", "e3m2", 2), ("e2m3", "e2m1", 4), ("e3m2", "e2m3", 0), ("e2m1", "e4m3", 6))
        for a_mn, both in ((True, False), (False, False), (True, True))
    ),
    ("f8f6f4", "e3m2", "e2m1", {"a_mn": True, "b_mn": True, "m": 256, "group": 2, "n": 64, "swizzle_b": 6}),
    ("mxf8f6f4", "e2m1", "e3m2", {"vector": 1, "scale": "ue8m0", "a_mn": True, "b_mn": True, "n": 128}),
    ("mxf8f6f4", "e4m3", "e2m3", {"vector": 1, "scale": "ue8m0", "b_mn": True, "n": 64}),
    ("mxf8f6f4", "e4m3", "e4m3", {"vector": 1, "scale": "ue8m0", "ids": (2, 1)}),
    ("mxf8f6f4", "e2m1", "e2m3", {"vector": 1, "scale": "ue8m0", "ids": (3, 0), "n": 40}),
    ("mxf8f6f4", "e5m2", "e4m3", {"vector": 1, "scale": "ue8m0", "m": 256, "group": 2}),
    ("mxf4", "e2m1", "e2m1", {"vector": 2, "scale": "ue8m0", "ids": (0, 2)}),
    ("mxf4", "e2m1", "e2m1", {"vector": 2, "scale": "ue8m0", "ids": (2, 0), "m": 128, "group": 2, "n": 96}),
    ("mxf4nvf4", "e2m1", "e2m1", {"vector": 4, "scale": "ue4m3"}),
    ("mxf4nvf4", "e2m1", "e2m1", {"vector": 4, "scale": "ue4m3", "n": 200, "swizzle_a": 4, "swizzle_b": 6}),
    ("mxf4nvf4", "e2m1", "e2m1", {"vector": 4, "scale": "ue8m0", "n": 256}),
    ("mxf4nvf4", "e2m1", "e2m1", {"vector": 2, "scale": "ue8m0", "ids": (2, 2)}),
    ("mxf4nvf4", "e2m1", "e2m1", {"vector": 4, "scale": "ue4m3", "m": 256, "group": 2, "n": 128, "negate": (0, 1)}),
    ("mxf4nvf4", "e2m1", "e2m1", {"vector": 4, "scale": "ue4m3", "m": 128, "group": 2, "n": 64}),
]


@pytest.mark.parametrize(
    ("kind", "a", "b", "how"), CASES, ids=[f"{c[0]}-{c[1]}-{c[2]}-{i}" for i, c in enumerate(CASES)]
)
def test_every_kind(kind: str, a: str, b: str, how: dict[str, Any]) -> None:
    got, partial, _ = run(kind, a, b, **how)
    want = rounded(partial, np.float32)
    have = got.view(np.float32)
    # Sums beyond float64's exactness may differ by the last place of float64 before the rounding.
    if kind in ("mxf4nvf4", "mxf4") or "e" in a:
        assert (have == want).all()
    else:
        assert np.abs(have - want).max() <= np.spacing(np.abs(want).max())
        assert (have == want).mean() > 0.999


@pytest.mark.parametrize("kind", ["f16", "f8f6f4"])
def test_an_accumulator_of_f16_is_rounded_to_f16_each_time(kind: str) -> None:
    form = "f16" if kind == "f16" else "e4m3"
    got, partial, _ = run(kind, form, form, d=0, count=3)
    assert (got >> 16 == 0).all()
    have = got.astype(np.uint16).view(np.float16)
    assert (have == rounded(partial, np.float16)).mean() > 0.999
    assert not (have == partial.sum(axis=0).astype(np.float16)).all() or kind == "f8f6f4"


@pytest.mark.parametrize(("a", "b"), [("s8", "s8"), ("u8", "s8"), ("u8", "u8")])
@pytest.mark.parametrize("sat", [0, 1])
def test_integers_wrap_or_clamp(a: str, b: str, sat: int) -> None:
    got, partial, ctas = run("i8", a, b, d=2, sat=sat, n=32)
    assert (got.view(np.int32) == partial.sum(axis=0)).all()
    tmem = ctas[0].unit(Tmem)
    tmem.data[:32] = 0x7FFF_FFF0
    bits = idesc("i8", a, b, 128, 32, d=2, sat=sat)
    core = ctas[0].unit(TensorCore)
    desc_a, desc_b = next(iter(core.plans))[1:3]
    issue(ctas[0].warps[0], 1, 0, desc_a, desc_b, bits, True, (), 0, 0, MmaForm("i8", 1, 0, False, 0, "test"), 0)
    tmem.settle(0, 32)
    value = 0x7FFF_FFF0 + partial[-1].astype(np.int64)
    value = np.clip(value, -(2**31), 2**31 - 1) if sat else (value + 2**31) % 2**32 - 2**31
    assert (value == tmem.data[:32].view(np.int32).T).all()


def test_a_chain_equals_its_instructions_one_by_one() -> None:
    _, partial, ctas = run("mxf4nvf4", "e2m1", "e2m1", vector=4, scale="ue4m3", count=9, seed=3)
    together = ctas[0].unit(Tmem).floats[:64].copy()
    assert (rounded(partial, np.float32) == together.T).all()
    assert ctas[0].launch.counters["mma.instructions"] == ctas[0].launch.counters["mma.mxf4nvf4.1cta"] == 9
    assert ctas[0].launch.counters["mma.flops"] == 9 * 2 * 128 * 64 * 64


def test_scale_input_d_and_disabled_lanes() -> None:
    _, partial, ctas = run("f16", "f16", "f16", count=1, n=16)
    core = ctas[0].unit(TensorCore)
    tmem = core.tmem
    before = tmem.floats[:16].copy()
    desc_a, desc_b = next(iter(core.plans))[1:3]
    form = MmaForm("f16", 1, 0, False, 3, "test")
    mask = (0xFFFF0000, 0, 0, 0x80000000)
    issue(ctas[0].warps[0], 1, 0, desc_a, desc_b, idesc("f16", "f16", "f16", 128, 16), True, mask, 0, 0, form, 0)
    tmem.settle(0, 16)
    after = tmem.floats[:16]
    kept = [*range(16, 32), 127]
    assert (after[:, kept] == before[:, kept]).all()
    rest = [lane for lane in range(128) if lane not in kept]
    want = (before.astype(np.float64) / 8 + partial[0].T).astype(np.float32)
    assert np.allclose(after[:, rest], want[:, rest], rtol=1e-6)
    assert not (after[:, rest] == before[:, rest]).all()


def test_without_input_d_the_old_value_is_gone() -> None:
    _, partial, ctas = run("mxf4nvf4", "e2m1", "e2m1", vector=4, scale="ue4m3", count=2)
    core = ctas[0].unit(TensorCore)
    desc_a, desc_b = next(iter(core.plans))[1:3]
    bits = idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64)
    form = MmaForm("mxf4nvf4", 1, 4, False, 0, "test")
    for _ in range(3):
        issue(ctas[0].warps[0], 1, 0, desc_a, desc_b, bits, False, (), SFA, SFB, form, 0)
    core.tmem.settle(0, 64)
    assert (partial[-1].astype(np.float32) == core.tmem.floats[:64].T).all()


def test_operands_are_read_when_issued() -> None:
    _, partial, ctas = run("mxf4nvf4", "e2m1", "e2m1", vector=4, scale="ue4m3", count=1)
    core = ctas[0].unit(TensorCore)
    desc_a, desc_b = next(iter(core.plans))[1:3]
    form = MmaForm("mxf4nvf4", 1, 4, False, 0, "test")
    bits = idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64)
    issue(ctas[0].warps[0], 1, 0, desc_a, desc_b, bits, False, (), SFA, SFB, form, 0)
    ctas[0].shared.data[:] = 0xFF
    core.tmem.data[SFA : SFA + 32] = 0
    core.tmem.settle(0, 64)
    assert (partial[0].astype(np.float32) == core.tmem.floats[:64].T).all()


def test_the_control() -> None:
    once()
    once(d=128, enable=False)


def _release(tmem: Tmem) -> None:
    tmem.free(0, 512)


def _spoil(tmem: Tmem) -> None:
    tmem.data[SFA + 1, 64 + 5] ^= 1


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"mask": 3}, "multi-lane", "2 lanes"),
        ({"d": 490}, "tmem", "do not lie inside one allocation"),
        ({"d": 128}, "uninitialised", "accumulates"),
        ({"d": 16 << 16}, "tmem", "lane 16"),
        ({"sfa": 300}, "uninitialised", "SFA"),
        ({"sfb": 300}, "uninitialised", "SFB"),
        ({"sfa": SFA | 1 << 16}, "tmem", "lane 1"),
        ({"sfa": SFA | 1 << 30}, "sf-id", "SF id 1"),
        ({"d": SFA - 60, "enable": False}, "tmem", "overlaps the accumulator"),
        ({"prepare": _spoil}, "tmem", "row 37"),
        ({"prepare": _release}, "tmem", "nothing is allocated"),
        ({"form": MmaForm("mxf4nvf4", 2, 4, False, 0, "test")}, "cta-group", "earlier"),
    ],
)
def test_what_is_found(changes: dict[str, Any], kind: str, said: str) -> None:
    with pytest.raises(Fault, match=said) as caught:
        once(**changes)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (idesc("mxf4nvf4", "e2m1", "e2m1", 256, 64), "M = 256"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 0), "N = 0"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64, a_mn=1), "K-major operands only"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64, ids=(1, 0)), "SFA id 1"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64, ids=(0, 2)), "SFB id 2"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64) | 1 << 31, "K = 96"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64) | 1, "reserved"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64) | 1 << 24, "reserved"),
        (idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64) ^ 3 << 7, "A type 2"),
    ],
)
def test_illegal_instruction_descriptors(bits: int, said: str) -> None:
    with pytest.raises(Fault, match=said) as caught:
        once(bits=bits)
    assert caught.value.kind == "descriptor"


def test_a_dense_product_ignores_the_version_of_sparsity() -> None:
    bits = idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64)
    plain, versioned = (decode_instruction(each, "mxf4nvf4", 1, 4, "test") for each in (bits, bits | 1 << 12))
    assert all(getattr(versioned, name) == getattr(plain, name) for name in ("a", "b", "m", "n", "a_id", "b_id"))
    with pytest.raises(Fault, match="B type 2"):
        decode_instruction(bits ^ 3 << 10, "mxf4nvf4", 1, 4, "test")


def test_sparsity_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="sparse"):
        once(bits=idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64) | 4)


def test_scale_factors_that_were_stored_are_compared_each_time() -> None:
    _, _, ctas = run("mxf4nvf4", "e2m1", "e2m1", vector=4, scale="ue4m3", count=1)
    core = ctas[0].unit(TensorCore)
    desc_a, desc_b = next(iter(core.plans))[1:3]
    form = MmaForm("mxf4nvf4", 1, 4, False, 0, "test")
    bits = idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64)
    move = movement("32x32b", 4)
    words = tuple(np.full(32, 0x38383838, np.uint32) for _ in range(4))
    for warp in range(4):
        store(ctas[0].warps[warp], 0xFFFF_FFFF, warp << 21 | SFA, words, move, "st", 0)
    for _ in range(2):
        issue(ctas[0].warps[0], 1, 0, desc_a, desc_b, bits, True, (), SFA, SFB, form, 0)
    store(ctas[0].warps[2], 0xFFFF_FFFF, 2 << 21 | SFA, (*words[:3], words[3] + 1), move, "st", 0)
    with pytest.raises(Fault, match="SFA of row 96: lane 0 of column 259"):
        issue(ctas[0].warps[0], 1, 0, desc_a, desc_b, bits, True, (), SFA, SFB, form, 0)


def test_a_pair_of_64_rows_a_cta_reads_the_factors_of_each_half_of_n_from_its_own_lanes() -> None:
    how = {"vector": 4, "scale": "ue4m3", "m": 128, "group": 2, "n": 64, "count": 1}
    _, _, ctas = run("mxf4nvf4", "e2m1", "e2m1", **how)
    desc_a, desc_b = next(iter(ctas[0].unit(TensorCore).plans))[1:3]
    form = MmaForm("mxf4nvf4", 2, 4, False, 0, "test")
    arguments = (desc_a, desc_b, idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64), False, (), SFA, SFB, form, 0)
    tmems = [cta.unit(Tmem) for cta in ctas]

    def accumulator() -> list[np.ndarray]:
        issue(ctas[0].warps[0], 1, 0, *arguments)
        for tmem in tmems:
            tmem.settle(0, 512)
        return [tmem.data[:32].copy() for tmem in tmems]

    before = accumulator()
    assert all(tmem.data[SFB, 0] != tmem.data[SFB, 64] for tmem in tmems)  # the halves are not the same
    for tmem in tmems:  # all factors of column 33, both copies, become zero: that column alone changes
        tmem.data[SFB, [65, 97]] = 0
    after = accumulator()
    for old, new in zip(before, after, strict=True):
        assert (np.argwhere((old != new).any(axis=1)) == [[1]]).all()
        assert not new[1, 64:].view(np.float32).any()
        assert (old[1, :64] == new[1, :64]).all()
    tmems[1].data[SFB, 96] ^= 1
    with pytest.raises(Fault, match=r"SFB of row 32: lane 64 of column \d+ holds .* lane 96 holds") as caught:
        accumulator()
    assert "warpx2::01_23" in str(caught.value.hint)


@pytest.mark.parametrize(("m", "group"), [(128, 1), (64, 1), (256, 2)])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_rows_that_nothing_has_written_leave_their_part_of_d_undefined(m: int, group: int, operand: str) -> None:
    _, _, ctas = run("f16", "f16", "f16", m=m, group=group, n=32, count=1)
    whole = next(iter(ctas[0].unit(TensorCore).plans))[1:3]
    rows, n = m // group, 32
    place, count = {"A": (32768, rows), "B": (98304, n // group)}[operand]
    for cta in ctas:
        half = put(cta, 1024 + place, np.zeros((count, 16, 2), np.uint8), swizzle=2, mn=False)
    lost = ctas[-1].shared.written
    lost[place + k_major(3, 7, swizzle=2, stride=1024)] = False
    holed = (half, whole[1]) if operand == "A" else (whole[0], half)

    def undefined(operands: tuple[int, int], *, adds: bool) -> set[tuple[int, int]]:
        bits, form = idesc("f16", "f16", "f16", m, n), MmaForm("f16", group, 0, False, 0, "test")
        issue(ctas[0].warps[0], 1, 0, *operands, bits, adds, (), 0, 0, form, 0)
        found = set()
        for rank, cta in enumerate(ctas):
            of = cta.unit(Tmem).undefined
            for r, c in np.ndindex(rows, n):
                lane, column = lane_column(r, c, m=m, group=group, columns=n)
                if column in of and of[column].lanes[lane]:
                    found.add((rank * rows + r, c))
        return found

    row = (group - 1) * count + 3
    want = {(row, c) for c in range(n)} if operand == "A" else {(r, row) for r in range(m)}
    assert undefined(whole, adds=True) == set()
    for operands, adds in ((holed, False), (holed, True), (whole, True)):
        assert undefined(operands, adds=adds) == want
    fault = ctas[-1].unit(Tmem).undefined_words(0, n).fault
    assert fault is not None
    assert f"{operand}: byte {place + k_major(3, 7, swizzle=2, stride=1024)} of shared memory" in fault.message
    assert fault.where is not None
    assert undefined(whole, adds=False) == set()
    for r in range(count):
        lost[place + k_major(r, 7, swizzle=2, stride=1024)] = False
    with pytest.raises(Fault, match="never written"):
        undefined(holed, adds=False)


@pytest.mark.parametrize("name", ["SFA", "SFB"])
def test_undefined_scale_factors_leave_their_part_of_d_undefined(name: str) -> None:
    fault = Fault("uninitialised", "copied from nothing")
    found: list[Tmem] = []

    def prepare(lanes: Any) -> Any:
        def spoil(tmem: Tmem) -> None:
            words = np.zeros((2, 128), np.bool_)
            words[1, lanes] = True
            words[0] |= lanes == slice(None)
            tmem.undefine({"SFA": SFA, "SFB": SFB}[name], words, fault)
            found.append(tmem)

        return spoil

    once(prepare=prepare(slice(5, None, 32)))
    words = found[0].undefined_words(0, 64).words
    want = np.zeros((64, 128), np.bool_)
    want[(slice(None), 37) if name == "SFA" else 37] = True
    assert (words == want).all()
    if name == "SFB":
        with pytest.raises(Fault, match="copied from nothing"):
            once(prepare=prepare(slice(None)))


@pytest.mark.parametrize("change", ["freed", "moved"])
def test_what_was_checked_is_checked_again_after_a_change(change: str) -> None:
    _, _, ctas = run("f16", "f16", "f16", count=1, n=16)
    core = ctas[0].unit(TensorCore)
    desc_a, desc_b = next(iter(core.plans))[1:3]
    bits = idesc("f16", "f16", "f16", 128, 16)
    arguments = (1, 0, desc_a, desc_b, bits, True, (), 0, 0, MmaForm("f16", 1, 0, False, 0, "test"), 0)
    w = ctas[0].warps[0]
    issue(w, *arguments)
    issue(w, *arguments)
    core.tmem.free(0, 512)
    if change == "moved":
        core.tmem.take(0, 32, 2)
    with pytest.raises(Fault) as caught:
        issue(w, *arguments)
    assert caught.value.kind == ("tmem" if change == "freed" else "uninitialised")


def test_the_peer_must_not_have_exited() -> None:
    _, _, ctas = run("f16", "f16", "f16", m=256, group=2, count=1, n=16)
    desc_a, desc_b = next(iter(ctas[0].unit(TensorCore).plans))[1:3]
    bits = idesc("f16", "f16", "f16", 256, 16)
    arguments = (1, 0, desc_a, desc_b, bits, False, (), 0, 0, MmaForm("f16", 2, 0, False, 0, "test"), 0)
    issue(ctas[0].warps[0], *arguments)
    ctas[1].exited = len(ctas[1].warps)
    with pytest.raises(Fault, match="has exited"):
        issue(ctas[0].warps[0], *arguments)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from tests.sim.alu.harness import Case, every_way, run
from tests.sim.alu.patterns import integers

LETTER = {8: "b", 16: "h", 32: "r", 64: "d"}


@pytest.mark.parametrize(
    ("bits", "count", "whole"), [(8, 2, "h0"), (8, 4, "r0"), (16, 2, "r0"), (16, 4, "d0"), (32, 2, "d0")]
)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_vectors_are_packed_with_the_first_item_lowest(bits: int, count: int, whole: str, data: st.DataObject) -> None:
    items = [data.draw(integers(bits)) for _ in range(count)]
    names = [f"{LETTER[bits]}{n + 1}" for n in range(count)]
    vector = "{" + ", ".join(names) + "}"
    total = bits * count
    want = [sum(v << bits * n for n, v in enumerate(lane)) for lane in zip(*items, strict=True)]
    assert every_way(f"mov.b{total} {whole}, {vector}", dict(zip(names, items, strict=True))) == want
    assert every_way(f"mov.b{total} {vector}, {whole}", {whole: want}) == list(zip(*items, strict=True))


def test_items_may_be_thrown_away_or_literals() -> None:
    case = Case(d1=0x1234_5678_9ABC_DEF0)
    case.run("mov.b64 {_, r0}, d1")
    assert case.values["r0"] == 0x1234_5678
    assert run("mov.b64 d0, {r1, 0}", r1=np.arange(32, dtype=np.uint32)).tolist() == list(range(32))
    assert run("mov.b64 d0, {-1, 1}") == 0x1_FFFF_FFFF


def test_a_vector_may_be_unpacked_over_its_own_source() -> None:
    case = Case(r1=0xBBBB_AAAA, h0=0, h1=0)
    case.run("mov.b32 {h0, h1}, r1")
    assert (case.values["h0"], case.values["h1"]) == (0xAAAA, 0xBBBB)
    case = Case(r1=1, r2=2)
    case.run("mov.b64 d0, {r2, r1}")
    case.run("mov.b64 {r1, r2}, d0")
    assert (case.values["r1"], case.values["r2"]) == (2, 1)


def test_128_bits() -> None:
    low, high = 0x1111_2222_3333_4444, 0x5555_6666_7777_8888
    lanes = np.arange(32, dtype=np.uint64)
    whole = run("mov.b128 q0, {d1, d2}", d1=low, d2=high)
    assert whole == high << 64 | low
    assert run("mov.b128 {d1, d2}, q0", q0=whole) == (low, high)
    spread = run("mov.b128 q0, {d1, d2}", d1=lanes, d2=high)
    assert [int(v) for v in spread] == [high << 64 | lane for lane in range(32)]
    first, second = run("mov.b128 {d1, d2}, q0", q0=spread)
    assert first.tolist() == list(range(32))
    assert second.dtype == np.uint64
    assert run("mov.b128 {r1, r2, r3, r4}, q0", q0=whole) == (0x3333_4444, 0x1111_2222, 0x7777_8888, 0x5555_6666)
    assert run("mov.b128 q0, q1", q1=whole) == whole


def test_registers_special_registers_symbols_and_literals() -> None:
    array = np.arange(32, dtype=np.uint32)
    assert run("mov.u32 r0, r1", r1=array) is array
    assert run("mov.u32 r0, %ctaid.x") == 5
    assert run("mov.b32 r0, 0f3F800000") == 0x3F80_0000
    assert run("mov.f64 d0, 0d3FF0000000000000") == 0x3FF0_0000_0000_0000
    assert run("mov.u16 h0, -1") == 0xFFFF
    assert run("mov.pred p0, !p1", p1=True) is False
    assert run("mov.pred p0, 1") is True


def test_a_guard_keeps_the_other_lanes() -> None:
    odd = np.arange(32) % 2 == 1
    old = np.arange(100, 132, dtype=np.uint32)
    case = Case(p9=odd, r0=old, r1=7)
    case.run("@p9 mov.b32 r0, r1")
    assert case.values["r0"].tolist() == [7 if lane % 2 else 100 + lane for lane in range(32)]
    case.run("@!p9 add.s32 r0, r1, 1")
    assert case.values["r0"].tolist() == [7 if lane % 2 else 8 for lane in range(32)]
    case = Case(p9=False, r0=3)
    case.run("@p9 mov.b32 r0, 9")
    assert case.values["r0"] == 3


def test_generic_addresses() -> None:
    assert run("cvta.shared.u64 d0, d1", d1=1040) == SHARED_WINDOW + 1040
    assert run("cvta.to.shared::cluster.u64 d0, d1", d1=SHARED_WINDOW + (3 << 24) + 8) == (3 << 24) + 8
    assert run("cvta.to.global.u64 d0, d1", d1=0x7F00_0000_0000) == 0x7F00_0000_0000
    assert run("cvta.param.u64 d0, d1", d1=0x7F00_0000_0000) == 0x7F00_0000_0000
    assert run("cvta.local.u64 d0, d1", d1=16) == LOCAL_WINDOW + 16
    addresses = [0x7F00_0000_0000, LOCAL_WINDOW + 8, SHARED_WINDOW + (2 << 24) + 1024, SHARED_WINDOW + (1 << 24)]
    lanes = np.array(addresses * 8, np.uint64)
    wants = {
        "global": [True, False, False, False],
        "local": [False, True, False, False],
        "shared::cluster": [False, False, True, True],
        "shared::cta": [False, False, True, False],
        "shared": [False, False, True, False],
    }
    for space, want in wants.items():
        case = Case(rank=2, d1=lanes)
        case.run(f"isspacep.{space} p0, d1")
        assert case.values["p0"].tolist() == want * 8
        for address, one in zip(addresses, want, strict=True):
            case = Case(rank=2, d1=address)
            case.run(f"isspacep.{space} p0, d1")
            assert case.values["p0"] is one


@pytest.mark.parametrize("text", ["mov.b32 {h0, h1}, {h2, h3}", "mov.b64 d0, {h1, h2, h3}", "cvta.to.shared.u32 r0, r1",
                                  "isspacep.const p0, d1", "mov.f16 h0, h1", "mov.b32 r0, r1, r2"])  # fmt: skip
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0].replace(".", r"\.")):
        Case().lower(text)

"""Instructions that change no byte, and discard, which makes them poison."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from tests.sim.memory.harness import Case


@pytest.mark.parametrize(
    "text",
    [
        "prefetch.global.L2 [%d1];",
        "prefetch.L1 [%d1];",
        "prefetch.global.L2::evict_last [%d1];",
        "prefetchu.L1 [%d1];",
        "applypriority.global.L2::evict_normal [%d1], 128;",
        "createpolicy.fractional.L2::evict_first.b64 %d2, 1.0;",
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d2;",
        "createpolicy.range.global.L2::evict_last.b64 %d2, [%d1], 128, %r1;",
        "createpolicy.cvt.L2.b64 %d2, 7;",
    ],
)
def test_no_byte_changes(text):
    case = Case()
    region = case.tensor(np.arange(256, dtype=np.uint8))
    result = case.run(text, d1=region.start)
    assert (region.data == np.arange(256)).all()
    assert type(result.get("d2", 0)) is int


def test_a_prefetch_past_the_end_is_legal():
    case = Case()
    region = case.tensor(np.arange(256, dtype=np.uint8))
    case.run("prefetch.global.L2 [%d1];", d1=region.end + 4096)


def test_discard_leaves_poison():
    case = Case()
    region = case.tensor(np.arange(256, dtype=np.uint8), initialised=np.ones(256, bool))
    case.run("discard.global.L2 [%d1], 128;", mask=1, d1=region.start)
    assert (region.data[:128] == 0xFF).all()
    assert (region.data[128:] == np.arange(128, 256)).all()
    case.run("ld.global.b32 %r1, [%d1]; st.global.b32 [%d1+128], %r1;", d1=region.start)
    assert "which was never written" in case.launch.findings.pop().message
    with pytest.raises(Fault, match="multiple of 128"):
        case.run("discard.global.L2 [%d1], 128;", mask=1, d1=region.start + 64)
    with pytest.raises(Fault, match="outside every tensor"):
        case.run("discard.global.L2 [%d1], 128;", mask=1, d1=region.end)


@pytest.mark.parametrize(
    "text",
    [
        "multimem.ld_reduce.global.add.f32 %f1, [%d1];",
        "prefetch.shared.L1 [%d1];",
        "prefetch.global.L3 [%d1];",
        "applypriority.global.L2::evict_last [%d1], 128;",
        "discard.global.L2 [%d1], 64;",
        "createpolicy.fractional.L1::evict_first.b64 %d2;",
        "createpolicy.frob.b64 %d2;",
    ],
)
def test_what_is_not_modelled(text):
    with pytest.raises(Unsupported):
        Case().run(text)

"""``tcgen05.mma`` of K = 96 (sm_103a): circular descriptors, and six or three scale factors in one word or two."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.tcgen05.copy import copy
from pytest_nvfp4.sim.tcgen05.copy_plan import CopyShape
from pytest_nvfp4.sim.tcgen05.descriptor import decode_instruction
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from tests.sim.tcgen05.harness import make_ctas, matrix_bits, own
from tests.sim.tcgen05.mma_case import SFA, SFB, idesc, once
from tests.sim.tcgen05.wide_case import circular, make_b300s, run_wide

NVFP4 = idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64) | 1 << 31


@pytest.mark.parametrize(
    ("kind", "scale", "vector", "how"),
    [
        ("mxf4nvf4", "ue4m3", 4, {}),
        ("mxf4nvf4", "ue8m0", 4, {}),
        ("mxf4nvf4", "ue8m0", 2, {}),
        ("mxf4", "ue8m0", 2, {"n": 256}),
        ("mxf4nvf4", "ue4m3", 4, {"n": 256, "group": 2}),
    ],
)
def test_a_tile_of_eight_instructions(kind: str, scale: str, vector: int, how: dict[str, int]) -> None:
    got, want = run_wide(kind, scale, vector, **how)
    assert np.allclose(got, want, rtol=1e-6, atol=0)
    assert np.abs(want).min() < np.abs(want).max()


def test_its_flops_are_those_of_96_elements() -> None:
    assert decode_instruction(NVFP4, "mxf4nvf4", 1, 4, "test").flops == 2 * 128 * 64 * 96
    assert decode_instruction(NVFP4, "mxf4nvf4", 1, 4, "test").vector == 6


def test_a_b200_has_no_such_instruction() -> None:
    with pytest.raises(Fault, match=r"K = 96 .* exists on sm_103 only") as caught:
        once(bits=NVFP4)
    assert caught.value.kind == "descriptor"


@pytest.mark.parametrize("sf_id", [1, 3])
def test_six_factors_begin_at_an_even_byte(sf_id: int) -> None:
    with pytest.raises(Fault, match=f"SFA id {sf_id} with 6 scale factors"):
        decode_instruction(NVFP4 | sf_id << 29, "mxf4nvf4", 1, 4, "test")


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"a": circular("A", 2) & ~(1 << 52 | 0x3FFF << 16)}, "descriptor", "run past the end of the row"),
        ({"bits": NVFP4}, "unsupported", "SFB of 64 rows in two words"),
        ({"bits": idesc("mxf4nvf4", "e2m1", "e2m1", 128, 128)}, "descriptor", "for K = 96 on sm_103 only"),
        ({"b": circular("B", 7) & ~(7 << 61)}, "unsupported", "without a swizzle"),
        ({"form": MmaForm("mxf4nvf4", 1, 4, True, 0, "test")}, "unsupported", "A in TMEM with K = 96"),
        ({}, "uninitialised", "SFA"),
    ],
)
def test_what_is_found(changes: dict[str, object], kind: str, said: str) -> None:
    [cta] = make_b300s(1)
    tmem = own(cta)
    cta.shared.written[:] = True
    if said != "SFA":
        tmem.some[:] = True
    values = {
        "a": circular("A", 2), "b": circular("B", 2), "bits": idesc("mxf4nvf4", "e2m1", "e2m1", 128, 128) | 1 << 31,
        "form": MmaForm("mxf4nvf4", 1, 4, False, 0, "test"), **changes,
    }  # fmt: skip
    with pytest.raises(Fault, match=said) as caught:
        issue(cta.warps[0], 1, 0, values["a"], values["b"], values["bits"], False, (), SFA, SFB, values["form"], 0)
    assert caught.value.kind == kind


def test_a_copy_has_no_absolute_offset() -> None:
    [cta] = make_ctas()
    own(cta)
    cta.shared.written[:] = True
    with pytest.raises(Fault, match="is for an MMA of K = 96"):
        copy(
            cta.warps[0],
            1,
            0,
            matrix_bits(2048, stride=1024, swizzle=2) | 1 << 52,
            CopyShape(32, 128, "warpx4", 1, "cp"),
            0,
        )

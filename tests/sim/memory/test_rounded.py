"""All lanes of a warp store their sum of a reduction to one address: sums that differ by rounding are no race."""

import numpy as np
import pytest

from pytest_nvfp4.device.worker.sim_findings import worker_finding
from pytest_nvfp4.finding import Finding
from tests.sim.ptx_case import run_ptx

LOAD = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd2, %rd100, %rd1; ld.global.f32 %f1, [%rd2];"
FUSED = "mul.f32 %f2, %f1, %f1; mov.b32 %r2, %f2; shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; mov.b32 %f3, %r3;"
FUSED += "fma.rn.f32 %f4, %f1, %f1, %f3;"
ADDED = FUSED.replace("fma.rn.f32 %f4, %f1, %f1, %f3", "add.f32 %f4, %f2, %f3")
BUTTERFLY = "".join(
    f"mov.b32 %r2, %f{4 + step}; shfl.sync.bfly.b32 %r3, %r2, {8 >> step}, 31, -1; mov.b32 %f3, %r3;"
    f"add.f32 %f{5 + step}, %f{4 + step}, %f3;"
    for step in range(4)
)
SPACES = {
    "global": "st.global.f32 [%rd101], {0};",
    "shared": "mov.u32 %r9, smem; st.shared.b32 [%r9], {0};",
}


def found(body: str) -> list[Finding]:
    values = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    ran = run_ptx(LOAD + body, buffers={"x": values, "y": np.zeros(4, np.float32)}, shared=64)
    return ran.grid.findings


@pytest.mark.parametrize("space", SPACES)
def test_a_fused_addition_gives_sums_that_differ_by_rounding(space: str) -> None:
    (finding,) = found(FUSED + BUTTERFLY + SPACES[space].format("%f8"))
    assert finding.kind == "lanes-rounding"
    assert worker_finding(finding).severity == "warning"
    first, second = (float(text) for text in finding.message.partition("rounding (")[2].split(")")[0].split(" and "))
    assert first != second
    assert np.isclose(first, second, rtol=1e-6)
    assert "enable_fp_fusion=False" in finding.hint
    copied = FUSED + BUTTERFLY + "mov.b32 %r8, %f8;" + SPACES[space].replace("st.global.f32", "st.global.b32")
    assert [each.kind for each in found(copied.format("%r8"))] == ["lanes-rounding"]


def test_pairs_of_sums_are_sums() -> None:
    """Triton adds two sums at once on Blackwell (``add.f32x2``)."""
    body = FUSED + "mov.b64 %rd5, {%f4, %f2}; mov.b64 %rd6, {%f3, %f2}; add.rn.f32x2 %rd7, %rd5, %rd6;" + BUTTERFLY
    body += "mov.b64 %rd8, {%f8, %f8}; add.rn.f32x2 %rd8, %rd8, %rd8; st.global.b64 [%rd101], %rd8;"
    assert [each.kind for each in found(body)] == ["lanes-rounding"]
    parts = body.replace("st.global.b64 [%rd101], %rd8", "mov.b64 {%f20, %f21}, %rd8; st.global.f32 [%rd101], %f21")
    assert [each.kind for each in found(parts)] == ["lanes-rounding"]
    assert [each.kind for each in found(body.replace("%rd101], %rd8", "%rd101], %rd7"))] == ["lanes-race"]


def test_without_it_all_lanes_have_one_sum() -> None:
    assert not found(ADDED + BUTTERFLY + SPACES["global"].format("%f8"))


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param("%f1", id="what was loaded"),
        pytest.param("%f4", id="sums that are not of all lanes"),
        pytest.param("{%f8, %f1}", id="one of two"),
    ],
)
def test_other_values_race(stored: str) -> None:
    store = "st.global.v2.f32" if stored.startswith("{") else "st.global.f32"
    assert [each.kind for each in found(f"{FUSED}{BUTTERFLY}{store} [%rd101], {stored};")] == ["lanes-race"]


@pytest.mark.parametrize("stored", ["%r7", "%r8"])
def test_numbers_that_are_near_and_no_sums_race(stored: str) -> None:
    """Integer arithmetic changes the last bit of one lane's sum; the second register is a copy of the first."""
    body = ADDED + BUTTERFLY + "mov.b32 %r7, %f8; setp.eq.u32 %p1, %r1, 31; @%p1 add.u32 %r7, %r7, 1;"
    body += f"mov.b32 %r8, %r7; st.global.b32 [%rd101], {stored};"
    assert [each.kind for each in found(body)] == ["lanes-race"]


@pytest.mark.parametrize(
    ("factor", "kind"),
    [
        ("0f3F800001", "lanes-rounding"),
        ("0f3F801000", "lanes-rounding"),
        ("0f3F820000", "lanes-race"),
        ("0fBF800000", "lanes-race"),
    ],
)
def test_how_near_they_are(factor: str, kind: str) -> None:
    """Lane 31 has the sum of the others times 1 + 2^-23, 1 + 2^-11, 1 + 2^-6 or -1."""
    body = ADDED + BUTTERFLY + f"setp.eq.u32 %p1, %r1, 31; @%p1 mul.f32 %f8, %f8, {factor};"
    assert [each.kind for each in found(body + SPACES["global"].format("%f8"))] == [kind]


@pytest.mark.parametrize(
    ("factor", "other", "kind"),
    [
        ("0f35000000", "0f40000000", "lanes-rounding"),
        ("0f35000000", "0f00000000", "lanes-rounding"),
        ("0f35000000", "0fBF800000", "lanes-rounding"),
        ("0f39000000", "0f40000000", "lanes-race"),
        ("0f35000000", "0f45000000", "lanes-race"),
        ("0f35000000", "0f7F800000", "lanes-race"),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_terms_may_cancel_out(factor: str, other: str, kind: str, apart: bool) -> None:
    """A sum of 2^-21 or 2^-13 of another one, which lane 31 has times 2, 0, -1, 2^11 or infinity.

    The other one is the first of a vector, or what lane 0 stores.
    """
    body = ADDED + BUTTERFLY + f"mul.f32 %f9, %f8, {factor}; setp.eq.u32 %p1, %r1, 31; @%p1 mul.f32 %f9, %f9, {other};"
    if not apart:
        assert [each.kind for each in found(body + "st.global.v2.f32 [%rd101], {%f8, %f9};")] == [kind]
        return
    body += "setp.eq.u32 %p2, %r1, 0; @%p2 mul.f32 %f9, %f8, 0f3F800000; selp.b64 %rd9, 4, 0, %p2;"
    assert [each.kind for each in found(body + "add.u64 %rd9, %rd9, %rd101; st.global.f32 [%rd9], %f9;")] == [kind]


def test_numbers_below_the_normal_ones_are_no_sums() -> None:
    body = ADDED + BUTTERFLY + "mul.f32 %f8, %f8, 0f00000100; setp.eq.u32 %p1, %r1, 31;"
    body += "@%p1 add.f32 %f8, %f8, 0f00000001;"
    assert [each.kind for each in found(body + SPACES["global"].format("%f8"))] == ["lanes-race"]

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from pytest_nvfp4.contracts.group_gemm import GroupGemm
from pytest_nvfp4.numerics import families, fp16, probes, scale_layout, threads
from pytest_nvfp4.numerics.arrays import NumericsError
from pytest_nvfp4.numerics.draw import Draw
from pytest_nvfp4.numerics.families import FAMILIES, default_families, family
from pytest_nvfp4.numerics.formats import E4M3
from pytest_nvfp4.numerics.inputs import Guard, Operands, assemble
from pytest_nvfp4.numerics.packing import unpack
from pytest_nvfp4.problem import GPUMODE, Group, Problem
from tests.numerics.family_codes import codes_of, probe, scales_of

from .oracles import dequantise, padding_mask

SMALL = Problem("small", (Group(40, 128, 256), Group(0, 128, 256), Group(130, 256, 512)), seed=5)

DIGESTS = {
    "gpumode": "c47fd18ed29e9815",
    "pow2_exact": "8d8a36879a5aebab",
    "subnormal_sf": "b6533c643903c302",
    "subnormal_out": "03c5448fa663d732",
    "all_scale": "70e97e3d6d03b0a4",
    "sparse75": "8da0553c4237e966",
    "gauss_quantised": "4fcdec6b138fdda6",
    "onehot": "810433d0e2d890c2",
    "ones_block": "7ef86d9f737785ef",
    "position_scales": "123c0b2c1a571f32",
    "nan_pad": "6dc5bd03981f57a3",
    "nan_isolated": "b63a2719d72b0f36",
    "edge": "47a67574f5eb5599",
}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_inputs_are_the_same_on_every_machine(name: str) -> None:
    """Pinned digests: a change of a family, of numpy's streams or of the byte order shows here."""
    assert FAMILIES[name].generate(SMALL).digest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_group_does_not_depend_on_what_was_made_before(name: str) -> None:
    whole = FAMILIES[name].generate(SMALL)
    for index in (2, 0):
        assert FAMILIES[name].group(SMALL, index).digest() == whole.groups[index].digest()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("onehot", "ones_block", "position_scales")])
def test_seeds_and_groups_differ(name: str) -> None:
    twins = Problem("twins", (Group(40, 128, 256), Group(40, 128, 256)), seed=5)
    first, second = FAMILIES[name].generate(twins).groups
    assert first.digest() != second.digest()
    other = Problem("twins", twins.groups, seed=6)
    assert FAMILIES[name].group(other, 0).digest() != first.digest()


def test_another_process_makes_the_same_inputs() -> None:
    source = (
        "from pytest_nvfp4.numerics.families import FAMILIES\n"
        "from pytest_nvfp4.problem import Group, Problem\n"
        "p = Problem('other name', (Group(40, 128, 256),), seed=5)\n"
        "print(FAMILIES['gauss_quantised'].group(p, 0).digest())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=900)
    assert done.stdout.strip() == FAMILIES["gauss_quantised"].group(SMALL, 0).digest()


@pytest.mark.parametrize("name", list(FAMILIES))
def test_inputs_fit_the_contract_and_the_declared_codes(name: str) -> None:
    for group, inputs in zip(SMALL.groups, FAMILIES[name].generate(SMALL).groups, strict=True):
        assert inputs.a.shape == (group.m, group.k // 2)
        assert inputs.b.shape == (group.n, group.k // 2)
        assert codes_of(inputs) <= FAMILIES[name].codes
        assert scales_of(inputs) <= FAMILIES[name].scales
        blocks = group.k // 16
        for rows, plain, reordered in (
            (group.m, inputs.sfa, inputs.sfa_reordered),
            (group.n, inputs.sfb, inputs.sfb_reordered),
        ):
            assert reordered.shape == scale_layout.reordered_shape(rows=rows, blocks=blocks)
            assert (scale_layout.restore(reordered, rows=rows, blocks=blocks)[:, :, 0] == plain).all()


@pytest.mark.parametrize("name", ["gpumode", "pow2_exact", "subnormal_sf", "all_scale", "sparse75", "edge"])
def test_declared_codes_occur(name: str) -> None:
    """The declared support is not wider than the truth, or blind spots would be understated."""
    inputs = FAMILIES[name].group(Problem("p", (Group(128, 256, 512),)), 0)
    assert scales_of(inputs) == FAMILIES[name].scales
    assert codes_of(inputs) == FAMILIES[name].codes


@pytest.mark.parametrize(
    "name", ["gpumode", "pow2_exact", "subnormal_sf", "subnormal_out", "sparse75", "position_scales", "nan_pad"]
)
@pytest.mark.parametrize("k", [256, 1024])
def test_families_that_promise_it_are_exact_in_every_order(name: str, k: int) -> None:
    exact = FAMILIES[name].group(Problem("p", (Group(40, 128, k),)), 0).exact()
    assert exact.order_free().all()


def test_all_scale_is_judged_by_the_bound() -> None:
    """Negative control of the promise above."""
    exact = FAMILIES["all_scale"].group(Problem("p", (Group(40, 128, 1024),)), 0).exact()
    assert not exact.order_free().any()


def test_gpumode_matches_the_published_distribution() -> None:
    inputs = FAMILIES["gpumode"].group(GPUMODE[4], 1)  # m = 72: padding rows exist
    values = dequantise(inputs.a, np.full_like(inputs.sfa, 0x38))
    assert set(np.unique(np.abs(values)).tolist()) == {0.0, 0.5, 1.0, 1.5}
    assert set(np.unique(E4M3.decode(inputs.sfa)).tolist()) == {1.0, 2.0}
    assert abs(float((inputs.sfa == 0x38).mean()) - 0.5) < 0.05
    counts = np.bincount(unpack(inputs.a).ravel(), minlength=16)[sorted(FAMILIES["gpumode"].codes)]
    assert (np.abs(counts / counts.sum() - 1 / 8) < 0.01).all()
    mask = padding_mask(rows=72, blocks=inputs.sfa.shape[1])
    padding = inputs.sfa_reordered[mask]
    assert padding.size > 1000
    assert set(np.unique(padding).tolist()) == {0x38, 0x40}


def test_three_quarters_of_sparse75_are_zero() -> None:
    codes = unpack(FAMILIES["sparse75"].group(GPUMODE[0], 1).a)
    assert abs(float((codes & 7 == 0).mean()) - 0.75) < 0.01
    assert (codes == 8).any()
    assert (codes == 0).any()


def test_most_of_subnormal_out_is_subnormal() -> None:
    bits = FAMILIES["subnormal_out"].group(GPUMODE[0], 0).exact().rounded().view(np.uint16)
    assert float((((bits & 0x7C00) == 0) & (bits & 0x7FFF != 0)).mean()) > 0.5


def test_edge_overflows_both_ways_and_has_rows_of_negative_zero() -> None:
    edge = FAMILIES["edge"]
    assert edge.shapes is not None
    assert {0, 1, 40, 72, 76, 127, 129} <= {group.m for group in edge.shapes.groups}
    assert len({group.n for group in edge.shapes.groups}) > 1
    assert len({group.k for group in edge.shapes.groups}) > 1
    assert GroupGemm().violation(edge.shapes) is None
    inputs = edge.group(edge.shapes, 5)
    bits = inputs.exact().rounded().view(np.uint16)
    assert (bits == 0x7C00).any()
    assert (bits == 0xFC00).any()
    assert (unpack(inputs.a)[0] == 8).all()
    assert not bits[0].any()


def test_edge_has_numbers_in_a_lone_row() -> None:
    edge = FAMILIES["edge"]
    assert edge.shapes is not None
    (index,) = (at for at, group in enumerate(edge.shapes.groups) if group.m == 1)
    bits = edge.group(edge.shapes, index).exact().rounded().view(np.uint16)
    assert np.count_nonzero(bits & 0x7FFF) > bits.size // 2


def test_edge_comes_round_the_ring_of_a_pipeline() -> None:
    """Some tile has more k-tiles of 256 than the 228 KiB of an SM's shared memory hold."""
    edge = FAMILIES["edge"]
    assert edge.shapes is not None
    stage = 2 * 128 * 256 // 2  # A and B of a tile of 128 x 128 x 256
    assert max(group.k for group in edge.shapes.groups) // 256 > 228 * 1024 // stage


def test_nan_pad_surrounds_everything_with_nan() -> None:
    inputs = FAMILIES["nan_pad"].group(Problem("p", (Group(72, 128, 256),)), 0)
    mask = padding_mask(rows=72, blocks=16)
    assert (inputs.sfa_reordered[mask] == 0x7F).all()
    guarded = inputs.sfa_flat(guarded=True)
    assert guarded.size - inputs.sfa_flat().size == 4 * 512
    assert (guarded[inputs.sfa_flat().size :] == 0x7F).all()
    assert not inputs.exact().nan.any()
    buffer = inputs.c_buffer()
    assert buffer.shape == (8 + 72 + 128, 128)
    assert np.isnan(fp16.from_bits(buffer)).all()
    before, c, after = inputs.split_c(buffer)
    assert (len(before), len(c), len(after)) == (8, 72, 128)
    assert np.shares_memory(c, buffer)


def test_nan_isolated_marks_one_row_and_one_column_of_every_other_group() -> None:
    made = FAMILIES["nan_isolated"].generate(Problem("p", (Group(40, 128, 256),) * 3))
    sums = [int(group.exact().nan.sum()) for group in made.groups]
    assert sums == [40 + 128 - 1, 0, 40 + 128 - 1]


def test_onehot_shows_every_pair_of_codes_for_both_operands() -> None:
    inputs = probe("onehot")
    m, n, k = inputs.group.m, inputs.group.n, inputs.group.k
    values = inputs.exact().values()
    for packed, scales, opposite, shown in (
        (inputs.a, inputs.sfa, n, values[0::2, 1::2]),
        (inputs.b, inputs.sfb, m, values[1::2, 0::2].T),
    ):
        read = probes.reader_positions(opposite, k)
        codes = unpack(packed)[0::2][:, read]
        scale = np.repeat(scales, 16, axis=1)[0::2][:, read]
        pairs = {(int(code), int(s)) for code, s in zip(codes.ravel(), scale.ravel(), strict=True)}
        assert len(pairs) == 16 * 127
        assert (shown == dequantise(packed, scales)[0::2][:, read]).all()


def test_ones_block_shows_single_scale_factors_by_place() -> None:
    inputs = probe("ones_block")
    values = inputs.exact().values()
    blocks = inputs.sfa.shape[1]
    readers = np.arange(inputs.group.n // 2) % blocks
    assert (values[0::2, 1::2] == 16 * E4M3.decode(inputs.sfa)[0::2][:, readers]).all()
    readers = np.arange(inputs.group.m // 2) % blocks
    assert (16 * E4M3.decode(inputs.sfb)[0::2][:, readers] == values[1::2, 0::2].T).all()


def test_position_codes_tell_neighbours_apart() -> None:
    row, block = np.arange(512)[:, None], np.arange(64)[None, :]
    codes = probes.position_code(row, block)
    assert codes.min() >= 1
    assert codes.max() <= E4M3.largest
    for moved in (codes[1:], codes[32:], codes[64:], codes[128:]):
        assert (codes[: len(moved)] != moved).all()
    for step in (1, 2, 3, 4, 16):
        assert (codes[:, :-step] != codes[:, step:]).all()


def test_few_readers_are_spread_over_k() -> None:
    positions = probes.reader_positions(128, 7168)
    assert positions.max() >= 7168 * 3 // 4
    assert {int(block) % 4 for block in positions // 16} == {0, 1, 2, 3}
    _, scales = probes.ones_block_operand(40, 448, start=0)
    read = np.argmax(scales[1::2] == probes.SCALE_ONE, axis=1)
    assert len(set(read.tolist())) == 20
    assert read.max() > 400


def test_draws() -> None:
    draw = Draw(seed=1, family="x", index=0)
    below = draw.below(3, (30000,))
    assert set(np.unique(below).tolist()) == {0, 1, 2}
    assert abs(float((below == 2).mean()) - 1 / 3) < 0.02
    normal = draw.gaussian((200, 200))
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.std()) - 1) < 0.02
    assert 3 < float(np.abs(normal).max()) < 8
    again = Draw(seed=1, family="x", index=0)
    assert (again.below(3, (30000,)) == below).all()
    assert (Draw(seed=1, family="y", index=0).below(3, (30000,)) != below).any()


def test_draws_of_any_seed_are_possible() -> None:
    assert Draw(seed=-1, family="x", index=0).below(256, (4,)).shape == (4,)


def test_the_digest_sees_every_array() -> None:
    inputs = FAMILIES["all_scale"].group(SMALL, 0)
    before = inputs.digest()
    for array in (inputs.a, inputs.b, inputs.sfa, inputs.sfb, inputs.sfa_reordered, inputs.sfb_reordered):
        corner = (-1,) * array.ndim
        array[corner] ^= 1
        assert inputs.digest() != before
        array[corner] ^= 1
    assert inputs.digest() == before


def test_registry() -> None:
    assert family("edge") is FAMILIES["edge"]
    assert {"gpumode", "nan_pad", "edge"} <= {item.name for item in default_families()}
    with pytest.raises(NumericsError, match="known are gpumode, "):
        family("nonsense")


def test_unfit_groups_are_named() -> None:
    with pytest.raises(NumericsError, match="l = 2"):
        FAMILIES["gpumode"].group(Problem("p", (Group(8, 128, 256, 2),)), 0)
    with pytest.raises(NumericsError, match="multiple of 16"):
        FAMILIES["gpumode"].group(Problem("p", (Group(8, 128, 24),)), 0)
    one, scale = np.zeros((1, 8), np.uint8), np.zeros((1, 1), np.uint8)
    with pytest.raises(NumericsError, match=r"b has shape \[1, 8\], not \[2, 8\]"):
        assemble(Group(1, 2, 16), Operands(one, one, scale, scale), Guard())


def test_digest_is_sha256() -> None:
    assert len(FAMILIES["edge"].group(SMALL, 0).digest()) == hashlib.sha256().digest_size * 2


def test_threads_change_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("p", (Group(40, 128, 256), Group(8, 256, 512), Group(1, 128, 256)))
    want = FAMILIES["gpumode"].generate(problem).digest()
    monkeypatch.setattr(families, "_LARGE", 0)
    monkeypatch.setattr(threads, "cores", lambda: 3)
    assert FAMILIES["gpumode"].generate(problem).digest() == want

"""The numbers of a chain: what is provably exact is computed so, and the rest is rounded after each instruction."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.tcgen05 import accumulate, operand_tiles
from pytest_nvfp4.sim.tcgen05.accumulate import Chain
from pytest_nvfp4.sim.tcgen05.operand_tiles import OperandEncoding, OperandTile, decode
from pytest_nvfp4.sim.tcgen05.tile_cache import OperandBytes, OperandTileCache
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.chain_kernel import Kernel, N, draw
from tests.sim.tcgen05.harness import poke
from tests.sim.tcgen05.places import E2M1, E4M3
from tests.sim.tcgen05.test_step_tiles import product


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which ways were taken."""
    taken: list[str] = []
    for name in ("_integral", "_whole", "_segmented", "_stepped", "_rounded"):
        kept = getattr(Chain, name)

        def spy(self, *args, kept=kept, name=name):
            taken.append(name)
            return kept(self, *args)

        monkeypatch.setattr(Chain, name, spy)
    return taken


@pytest.mark.parametrize(
    ("low", "high", "count", "path"),
    [
        (0x38, 0x39, 12, ["_whole"]),
        (0x38, 0x41, 12, ["_whole"]),
        (0x30, 0x40, 24, ["_segmented"]),
        (0x28, 0x41, 24, ["_segmented", "_stepped"]),
        (0x01, 0x7F, 6, ["_rounded"]),
        (0x00, 0x08, 6, ["_whole"]),
    ],
)
def test_each_way_follows_the_rule(low: int, high: int, count: int, path: list[str], paths: list[str]) -> None:
    kernel = Kernel()
    rng = np.random.default_rng(low)
    for i in range(count):
        kernel.add(*draw(rng, low, high), enable=i > 0)
    assert (kernel.value() == kernel.rule()).all()
    assert paths == path


@pytest.mark.parametrize(
    ("low", "high", "count", "path"),
    [
        (0x38, 0x39, 12, ["_integral", "_whole"]),
        (0x00, 0x08, 6, ["_integral", "_whole"]),
        (0x38, 0x41, 12, ["_whole"]),  # 1 to 2 in eighths
        (0x30, 0x40, 24, ["_segmented"]),
    ],
)
def test_small_integers_are_multiplied_as_such(
    low: int, high: int, count: int, path: list[str], paths: list[str]
) -> None:
    kernel, plain = Kernel(), Kernel()
    kernel.cta.launch.machine.int8_product = lambda: product
    rng = np.random.default_rng(low)
    for i in range(count):
        operands = draw(rng, low, high)
        operands[0][77 + i :] = 0  # rows beyond the end
        kernel.add(*operands, enable=i > 0)
        plain.add(*operands, enable=i > 0)
    assert (kernel.value() == kernel.rule()).all()
    assert paths == path
    assert kernel.value().tobytes() == plain.value().tobytes()


def test_rows_that_are_all_zero_need_no_product() -> None:
    kernel = Kernel()
    kernel.cta.launch.machine.int8_product = lambda: product
    kernel.tmem.floats[:N] = np.nan
    a, b, sfa, sfb = draw(np.random.default_rng(0), 0x38, 0x39)
    kernel.add(a & 8, b, sfa, sfb, enable=False)
    assert (kernel.value() == 0).all()


@pytest.mark.parametrize("proved", [True, False])
def test_what_starts_from_d_or_may_be_rounded_is_not(
    proved: bool, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel()
    kernel.cta.launch.machine.int8_product = lambda: product
    rng = np.random.default_rng(6)
    kernel.tmem.floats[:N] = start = np.full((N, 128), 0.25, np.float32)
    kernel.tmem.wrote(0, N)
    kernel.add(*draw(rng, 0x38, 0x39), enable=True)
    assert (kernel.value() == kernel.rule(start)).all()
    # Half of 16,384 elements have 64 or 96 steps, all of one sign: their sums exceed 2**24, and are rounded.
    kernel.sums.clear()
    for i in range(256):
        a, b, sfa, sfb = draw(rng, 0x30, 0x31)
        sfa[:, :2] = sfb[:, :2] = 0x48  # 4, and 1/2: eight steps and one
        a[:, :32] |= 6
        b[:, :32] |= 6
        kernel.add(a & 7, b & 7, sfa, sfb, enable=i > 0)
    if not proved:  # the control
        monkeypatch.setattr(accumulate, "is_exact", lambda *_: True)
    assert (kernel.value() == kernel.rule()).all() == proved
    assert ("_integral" in paths) != proved


def test_what_outgrows_the_grid_is_rounded_from_there_on(paths: list[str]) -> None:
    kernel = Kernel()
    rng = np.random.default_rng(5)
    for i in range(128):
        a, b, sfa, sfb = draw(rng, 0x30, 0x48)
        # All of one sign: the sums grow as fast as their bound.
        kernel.add(a & 7, b & 7, sfa, sfb, enable=i > 0)
    assert (kernel.value() == kernel.rule()).all()
    assert paths == ["_segmented", "_stepped"]
    exact = np.sum(kernel.sums, axis=0)
    assert not (kernel.value() == exact).all(), "the control: here rounding is real"


def test_going_on_from_what_tmem_holds(paths: list[str]) -> None:
    kernel = Kernel()
    rng = np.random.default_rng(6)
    start = (rng.integers(-1000, 1000, (N, 128)) / 4).astype(np.float32)
    kernel.tmem.floats[:N] = start
    kernel.tmem.wrote(0, N)
    for _ in range(3):
        kernel.add(*draw(rng, 0x38, 0x40), enable=True)
    assert (kernel.value() == kernel.rule(start)).all()
    assert paths == ["_segmented"]
    kernel.sums.clear()
    start = kernel.value() + np.float32(1e-9) * rng.standard_normal((N, 128)).astype(np.float32) + np.float32(0.1)
    kernel.tmem.floats[:N] = start
    kernel.add(*draw(rng, 0x38, 0x40), enable=True)
    assert (kernel.value() == kernel.rule(start)).all()
    assert paths[1:] == ["_segmented", "_stepped"], "a start off the grid is rounded"


def _near_the_bound(kernel: Kernel, coarse: int) -> np.ndarray:
    """Add two instructions to a D of 2**23 - 1 steps of 2**-20: of 2 * ``coarse`` + 2**-19, and of one step."""
    start = np.full((N, 128), 8 - 2.0**-20, np.float32)
    kernel.tmem.floats[:N] = start
    kernel.tmem.wrote(0, N)
    scales = np.array([0x38, 0x01, 0x38, 0x38], np.uint8)  # 1 and 2**-9
    code = E2M1.tolist().index
    for coarse_a, coarse_b, fine in ((coarse, 2.0, 1.0), (0.0, 0.0, 0.5)):
        a, b = np.zeros((128, 64), np.uint8), np.zeros((N, 64), np.uint8)
        a[:, 0], b[:, 0] = code(coarse_a), code(coarse_b)
        a[:, 16], b[:, 16] = code(0.5), code(fine)
        kernel.add(a, b, np.tile(scales, (128, 1)), np.tile(scales, (N, 1)), enable=True)
    return start


@pytest.mark.parametrize(("coarse", "path"), [(3, ["_segmented"]), (4, ["_segmented", "_stepped"])])
def test_a_chain_that_starts_from_d_is_rounded_after_each_instruction(
    coarse: int, path: list[str], paths: list[str]
) -> None:
    """At the bound of 2**23 steps: below it nothing is rounded, from it on the order of the roundings matters."""
    kernel = Kernel()
    have = Fraction(float(_near_the_bound(kernel, coarse)[0, 0]))
    for products in kernel.sums:
        have = _nearest(have + Fraction(float(products[0, 0])))
    assert all(Fraction(float(value)) == have for value in np.unique(kernel.value()))
    assert paths == path


def test_one_rounding_of_a_chain_that_starts_from_d_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: with the bound of a chain that starts from zero, the value differs."""
    wider = accumulate._segments
    monkeypatch.setattr(accumulate, "_segments", lambda a, b, count, **_: wider(a, b, count, based=False))
    kernel = Kernel()
    start = _near_the_bound(kernel, 4)
    assert (kernel.value() == start.astype(np.float64) + np.sum(kernel.sums, axis=0)).all()
    assert not (kernel.value() == kernel.rule(start)).any()


def test_a_look_in_between_changes_nothing() -> None:
    kernel, looked = Kernel(), Kernel()
    rng = np.random.default_rng(7)
    for i in range(8):
        operands = draw(rng, 0x20, 0x58)
        kernel.add(*operands, enable=i > 0)
        looked.add(*operands, enable=i > 0)
        looked.value()
    assert (kernel.value() == looked.value()).all()


def test_a_long_chain_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulate, "LONGEST", 256)
    kernel = Kernel()
    rng = np.random.default_rng(8)
    for i in range(11):
        kernel.add(*draw(rng, 0x30, 0x50), enable=i > 0)
        assert kernel.tmem.pending[0].length <= 4
    assert (kernel.value() == kernel.rule()).all()


def test_a_nan_scale_factor_spoils_its_row_only() -> None:
    kernel = Kernel()
    a, b, sfa, sfb = draw(np.random.default_rng(9), 0x30, 0x40)
    sfa[77, 2] = 0x7F
    kernel.add(a, b, sfa, sfb, enable=False)
    value = kernel.value()
    assert (value[:, 77].view(np.uint32) == 0x7FFF_FFFF).all()
    rest = [row for row in range(128) if row != 77]
    assert (value[:, rest] == kernel.rule()[:, rest]).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), low=st.integers(0, 0x70), width=st.integers(1, 14), rows=st.integers(0, 128))
def test_the_rule_in_integers(seed: int, low: int, width: int, rows: int) -> None:
    """Some elements against Python's fractions, whatever the scale factors and however many rows are zero."""
    kernel = Kernel()
    rng = np.random.default_rng(seed)
    steps = []
    for i in range(3):
        a, b, sfa, sfb = draw(rng, low, low + width)
        a[rows:] = 0
        kernel.add(a, b, sfa, sfb, enable=i > 0)
        steps.append((a, b, sfa, sfb))
    value = kernel.value()
    for r, c in ((0, 0), (63, 5), (127, 31), (max(rows - 1, 0), 7)):
        have = Fraction(0)
        for a, b, sfa, sfb in steps:
            for k in range(64):
                left = E2M1[a[r, k]] * E4M3[sfa[r, k // 16]]
                have += Fraction(left) * Fraction(E2M1[b[c, k]] * E4M3[sfb[c, k // 16]])
            have = Fraction(float(np.float32(float(have)))) if float(have) == have else _nearest(have)
        assert Fraction(float(value[c, r])) == have


def _nearest(value: Fraction) -> Fraction:
    """To float32, half to even."""
    exponent = -149
    while abs(value) / Fraction(2) ** exponent >= 1 << 24:
        exponent += 1
    return Fraction(round(value / Fraction(2) ** exponent)) * Fraction(2) ** exponent


def test_tiles_are_shared_by_their_bytes_and_by_nothing_less() -> None:
    cache = OperandTileCache(budget=1 << 20)
    operand = OperandEncoding("e2m1", True, False, False, 128, 64, "ue4m3", 4)
    rng = np.random.default_rng(0)
    chunks = [rng.integers(0, 1 << 63, 512, dtype=np.int64).view(np.complex128) for _ in range(4)]
    scale = [rng.integers(0x30, 0x40, 512, dtype=np.uint8).tobytes() for _ in range(4)]

    def get(some: list[np.ndarray], words: list[bytes]) -> OperandTile:
        return cache.get(OperandBytes(operand, [np.stack(some)], b"".join(words), (0,) * 4))

    one = get(chunks, scale)
    assert get([c.copy() for c in chunks], list(scale)) is one
    changed = chunks[2].copy()
    changed.view(np.uint8)[1237] ^= 1
    other = get([*chunks[:2], changed, chunks[3]], scale)
    assert other is not one
    assert np.count_nonzero(other.values != one.values) == 1
    words = bytearray(scale[1])
    words[300] ^= 1
    again = get(chunks, [scale[0], bytes(words), *scale[2:]])
    assert again is not one
    assert get(chunks, scale).values.tobytes() == one.values.tobytes()
    for i in range(40):
        chunks[0] = np.full(256, i, np.float64).astype(np.complex128)
        tile = get(chunks, scale)
        assert cache.held <= 1 << 20
        want = decode(operand, [np.concatenate(chunks)], 4, b"".join(scale), (0,) * 4)
        assert tile.values.tobytes() == want.values.tobytes()


@pytest.mark.parametrize("integers", [False, True])
def test_the_next_tile_does_not_take_the_memory_of_the_last(integers: bool) -> None:
    """Both are operands of one product, however small the cache is."""
    cache = OperandTileCache(budget=1)
    operand = OperandEncoding("e2m1", True, False, False, 128, 64, "ue4m3", 4)
    rng = np.random.default_rng(0)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(3):
        chunks = rng.integers(0, 1 << 63, (1, 512), dtype=np.int64).view(np.complex128)
        of = OperandBytes(operand, [chunks], bytes([0x38] * 512), (0,))
        tile = cache.steps(of) if integers else cache.get(of)
        assert tile is not None
        kept.append((tile.values, tile.values.copy()))
        for values, copy in kept[-2:]:
            assert (values == copy).all()


def test_one_cta_s_rows_are_not_those_of_two_that_begin_alike() -> None:
    cache = OperandTileCache()
    operand = OperandEncoding("f16", False, False, False, 128, 16, "", 0)
    rows = np.random.default_rng(0).integers(0, 1 << 14, 2048, dtype=np.uint16).view(np.complex128).reshape(1, -1)
    one = cache.get(OperandBytes(operand, [rows], b"", (0,)))
    two = cache.get(OperandBytes(operand, [rows, rows], b"", (0,)))
    assert (one.values.shape, two.values.shape) == ((128, 16), (256, 16))
    assert (two.values[128:] == one.values).all()
    assert cache.get(OperandBytes(operand, [rows.copy()], b"", (0,))) is one
    assert cache.get(OperandBytes(operand, [rows, rows], b"", (0,))) is two


def test_what_a_tile_was_made_of_is_not_the_memory_that_is_recorded_into() -> None:
    cache = OperandTileCache()
    operand = OperandEncoding("e2m1", True, False, False, 128, 64, "ue4m3", 4)
    words = bytes(0x38 for _ in range(512))
    recording = cache.recordings.start(256, 256)
    recording.add(np.zeros(256, np.complex128))
    one = cache.get(OperandBytes(operand, [recording.all()], words, (0,)))
    cache.recordings.end(recording)
    again = cache.recordings.start(256, 256)
    assert again.all().size == 0
    again.add(np.full(256, 2.0, np.complex128))
    other = cache.get(OperandBytes(operand, [again.all()], words, (0,)))
    assert other is not one
    assert cache.get(OperandBytes(operand, [np.zeros((1, 256), np.complex128)], words, (0,))) is one


@pytest.mark.parametrize("name", ["e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "s8", "u8"])
def test_grids_divide_the_values(name: str) -> None:
    form = operand_tiles.code_table(name)
    for value, grid in zip(form.values, form.grids.tolist(), strict=True):
        if grid != operand_tiles.NO_GRID:
            steps = value / 2.0**grid
            assert steps == int(steps)
            assert int(steps) % 2


@pytest.mark.parametrize("form", ["f16", "bf16", "tf32"])
def test_rows_grids_of_wide_formats(form: str) -> None:
    rng = np.random.default_rng(1)
    size = 4 if form == "tf32" else 2
    data = rng.integers(0, 256, (128, 32), dtype=np.uint8)
    if form == "f16":
        data[:, 1::2] &= 0x3B
    else:
        data[:, 3::4] &= 0x43
        data[:, 1::2] &= 0x43 if form == "bf16" else 0xFF
    operand = OperandEncoding(form, False, False, False, 128, 32 // size, "", 0)
    tile = decode(operand, [data.view(np.complex128).ravel()], 1, b"", ())
    for row, grid in zip(tile.values, tile.grids.tolist(), strict=True):
        steps = [Fraction(float(v)) / Fraction(2) ** grid for v in row if np.isfinite(v)]
        assert all(s.denominator == 1 for s in steps)
        assert any(s.numerator % 2 for s in steps)


def test_squares_bound_the_rows() -> None:
    rng = np.random.default_rng(2)
    operand = OperandEncoding("e2m1", True, False, False, 128, 64, "ue4m3", 4)
    chunks = rng.integers(0, 1 << 63, 3 * 512, dtype=np.int64).view(np.complex128)
    words = rng.integers(0, 0x7E, 3 * 512, dtype=np.uint8).tobytes()
    tile = decode(operand, [chunks], 3, words, (0,) * 3)
    exact = (tile.values.reshape(128, 3, 64).astype(np.float64) ** 2).sum(axis=2)
    assert (tile.squares >= exact * 2.0 ** (-2 * tile.grids[:, None])).all()
    steps = tile.values.astype(np.float64) / 2.0 ** tile.grids[:, None]
    assert (steps == np.rint(steps)).all()


def test_a_word_of_another_warp_is_not_looked_at() -> None:
    """Freeing columns drops what nobody looked at."""
    kernel = Kernel()
    kernel.add(*draw(np.random.default_rng(3), 0x30, 0x40), enable=False)
    assert kernel.tmem.pending
    kernel.tmem.free(0, 512)
    assert not kernel.tmem.pending
    assert isinstance(kernel.tmem, Tmem)
    poke(kernel.cta, 1024, np.zeros(16, np.uint8))

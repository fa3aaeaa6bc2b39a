from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensor_layouts
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics import scale_layout
from pytest_nvfp4.numerics.arrays import NumericsError

from .oracles import flat_size, padding_mask, position, unflatten

SIZES = st.tuples(st.integers(0, 300), st.integers(1, 20), st.integers(1, 3))


def plain(rows: int, blocks: int, batches: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks, batches), dtype=np.uint8)


@pytest.mark.parametrize(("rows", "blocks"), [(128, 4), (256, 16), (384, 28)])
def test_offsets_are_those_of_the_cute_layout(rows: int, blocks: int) -> None:
    """tensor-layouts' algebra of the layout that CUTLASS documents for scale factors (sizes without padding)."""
    rest_k = blocks // 4
    layout = tensor_layouts.Layout(
        ((32, 4, rows // 128), (16, 4, rest_k)), ((16, 4, 512 * rest_k), (0, 1, 512))
    )  # fmt: skip
    for row in range(0, rows, 7):
        for block in range(blocks):
            for element in (0, 15):
                assert layout(row, 16 * block + element) == scale_layout.offset(row, block, blocks=blocks)


@pytest.mark.skipif(sys.platform != "linux", reason="nvidia-cutlass-dsl is installed on Linux only")
def test_offsets_are_those_of_cutlass(tmp_path: Path) -> None:
    """CuTe DSL's own tile_atom_to_shape_SF, in a process of its own; what follows tracing (no driver) may fail."""
    source = """
        import json
        import cutlass.cute as cute
        from cutlass.utils.blockscaled_layout import tile_atom_to_shape_SF

        found = []

        @cute.jit
        def probe():
            layout = tile_atom_to_shape_SF((256, 512, 2), 16)
            for row in (0, 1, 31, 32, 63, 64, 100, 127, 128, 255):
                for k in (0, 16, 17, 64, 100, 300, 511):
                    for batch in (0, 1):
                        found.append((row, k, batch, cute.crd2idx((row, k, batch), layout)))

        try:
            cute.compile(probe)
        except BaseException:
            if not found:
                raise
        print(json.dumps(found))
    """
    script = tmp_path / "probe.py"
    script.write_text(textwrap.dedent(source))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(found) == 140
    for row, k, batch, offset in found:
        per_batch = flat_size(rows=256, blocks=32)
        assert offset == scale_layout.offset(row, k // 16, blocks=32) + batch * per_batch


def test_torch_permutation_gives_the_same_bytes() -> None:
    """The blocked order as a chain of torch views, as it is handed to torch._scaled_mm."""
    factors = plain(256, 12)
    tensor = torch.from_numpy(factors[:, :, 0].copy())
    tiles = tensor.view(2, 128, 3, 4).permute(0, 2, 1, 3)
    blocked = tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1)
    assert scale_layout.flatten(scale_layout.reorder(factors)).tobytes() == blocked.numpy().tobytes()


@given(SIZES)
@settings(max_examples=40, deadline=None)
def test_gpu_modes_index_formula(sizes: tuple[int, int, int]) -> None:
    rows, blocks, batches = sizes
    factors = plain(rows, blocks, batches)
    tensor = scale_layout.reorder(factors, padding=0x7F)
    assert tensor.shape == scale_layout.reordered_shape(rows=rows, blocks=blocks, batches=batches)
    row, block, batch = np.meshgrid(np.arange(rows), np.arange(blocks), np.arange(batches), indexing="ij")
    found = tensor[row % 32, row % 128 // 32, row // 128, block % 4, block // 4, batch]
    assert (found == factors).all()


@given(SIZES, st.integers(0, 255))
@settings(max_examples=40, deadline=None)
def test_both_directions(sizes: tuple[int, int, int], padding: int) -> None:
    rows, blocks, batches = sizes
    factors = plain(rows, blocks, batches)
    tensor = scale_layout.reorder(factors, padding=padding)
    flat = scale_layout.flatten(tensor)
    assert np.shares_memory(flat, tensor) or not flat.size
    assert (scale_layout.restore(tensor, rows=rows, blocks=blocks) == factors).all()
    back = unflatten(flat, rows=rows, blocks=blocks, batches=batches)
    assert (back == tensor).all()
    mask = padding_mask(rows=rows, blocks=blocks, batches=batches)
    assert (tensor[mask] == padding).all()
    assert mask.sum() == flat.size - factors.size


@given(st.integers(1, 300), st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_offset_and_position_are_inverse_and_fill_the_layout(rows: int, blocks: int) -> None:
    byte = np.arange(flat_size(rows=rows, blocks=blocks))
    row, block = position(byte, blocks=blocks)
    assert (scale_layout.offset(row, block, blocks=blocks) == byte).all()
    inside = (row < rows) & (block < blocks)
    assert inside.sum() == rows * blocks
    factors = plain(rows, blocks)
    flat = scale_layout.flatten(scale_layout.reorder(factors))
    assert (flat[inside] == factors[row[inside], block[inside], 0]).all()


def test_rows_32_apart_share_a_line() -> None:
    assert [scale_layout.offset(row, 0, blocks=4) for row in (0, 1, 32, 64, 96, 128)] == [0, 16, 4, 8, 12, 512]
    assert [scale_layout.offset(0, block, blocks=8) for block in (1, 3, 4)] == [1, 3, 512]


def test_padding_can_be_given_byte_by_byte() -> None:
    factors = plain(130, 5)
    whole = plain(256, 8, seed=1)
    tensor = scale_layout.reorder(factors, padding=whole)
    everything = scale_layout.restore(tensor, rows=256, blocks=8)
    assert (everything[:130, :5] == factors).all()
    assert (everything[130:] == whole[130:]).all()
    assert (everything[:130, 5:] == whole[:130, 5:]).all()


def test_a_group_without_rows() -> None:
    tensor = scale_layout.reorder(plain(0, 16))
    assert tensor.shape == (32, 4, 0, 4, 4, 1)
    assert scale_layout.flatten(tensor).size == 0


def test_a_transposed_tile_would_be_noticed() -> None:
    """Negative control: the order [4, 32] instead of [32, 4] inside a tile is another permutation."""
    factors = plain(128, 4)
    wrong = factors[:, :, 0].reshape(4, 32, 4).reshape(-1)
    assert (scale_layout.flatten(scale_layout.reorder(factors)) != wrong).any()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(NumericsError, match="not a byte"):
        scale_layout.reorder(plain(4, 4), padding=256)
    with pytest.raises(NumericsError, match=r"not \[128, 4, 1\]"):
        scale_layout.reorder(plain(4, 4), padding=plain(4, 4))
    with pytest.raises(NumericsError, match=r"not \[32, 4, 2, 4, 1, 1\]"):
        scale_layout.restore(scale_layout.reorder(plain(4, 4)), rows=130, blocks=4)
    with pytest.raises(NumericsError, match="rest_m"):
        scale_layout.flatten(plain(4, 4))
    with pytest.raises(NumericsError, match="not \\[rows, blocks\\]"):
        scale_layout.reorder(np.zeros(4, np.uint8))

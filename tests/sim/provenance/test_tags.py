"""Tags are found again in whatever copies them, and in nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.provenance.tags import NO_TAG, ZERO, Tags


@pytest.fixture
def tags() -> Tags:
    made = Tags()
    for group in range(2):
        made.add("A", group, rows=72, k=256)
        made.add("SFA", group, rows=72, k=256, padded_rows=128)
    return made


def test_cells_of_a_matrix(tags: Tags) -> None:
    data = tags.add("B", 1, rows=40, k=128)
    assert data.shape == (40, 64)
    cells = tags.of_chunks(data.view(np.uint32).reshape(40, 4, 4))
    places = tags.places(cells)
    index = tags.find("B", 1)
    assert (places.tensor == index).all()
    assert (places.row == np.arange(40)[:, None]).all()
    assert (places.k == 32 * np.arange(4)).all()
    assert index is not None
    assert tags.cell(index, 7, 96) == cells[7, 3]


@pytest.mark.parametrize(("name", "of_row"), [("A", 64), ("SFA", 8)])
def test_a_tensor_without_rows_has_no_cells(tags: Tags, name: str, of_row: int) -> None:
    """A group without rows is allowed; the tensors behind it are found."""
    assert tags.add(name, 2, rows=0, k=128).shape == (0, of_row)
    data = tags.add("B", 2, rows=40, k=128)
    places = tags.places(tags.of_chunks(data.view(np.uint32).reshape(40, 4, 4)))
    assert (places.tensor == tags.find("B", 2)).all()
    assert (places.row == np.arange(40)[:, None]).all()


def test_cells_of_scale_factors(tags: Tags) -> None:
    data = tags.add("SFB", 0, rows=40, k=128, padded_rows=128)
    assert data.shape == (128, 8)
    cells = tags.of_words(data.view(np.uint32))
    places = tags.places(cells)
    assert (places.tensor == tags.find("SFB", 0)).all()
    assert (places.row == np.arange(128)[:, None]).all()
    assert (places.k == [0, 64]).all()
    assert tags.tensors[-1].rows == 40, "rows from 40 on are padding"


def test_bytes_that_are_no_tags(tags: Tags) -> None:
    assert (tags.of_words(np.zeros(4, np.uint32)) == ZERO).all()
    assert (tags.of_chunks(np.zeros((4, 4), np.uint32)) == ZERO).all()
    noise = np.random.default_rng(3).integers(1, 1 << 32, (4096, 4), dtype=np.uint32)
    assert (tags.of_chunks(noise) == NO_TAG).all()
    assert (tags.of_words(noise[:, 0]) == NO_TAG).mean() > 0.99
    shifted = np.roll(tags.add("B", 0, rows=40, k=128).ravel(), 8).view(np.uint32).reshape(-1, 4)
    assert (tags.of_chunks(shifted)[1:] == NO_TAG).all(), "8 bytes further is not the same unit"

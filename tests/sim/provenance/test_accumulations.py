"""Which elements of C a CTA stored, by the group of tags whose rows they have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pytest_nvfp4.sim.provenance.accumulations import Accumulations
from pytest_nvfp4.sim.provenance.tags import Tags


def stored(tags: Tags, *owners: list[int]) -> dict[tuple[int, int, int], dict[str, list[int]]]:
    """Return what CTAs of one launch stored of matrices of three columns, given the CTA that owns each element."""
    recorder: Any = SimpleNamespace(tags=tags)
    regions = [SimpleNamespace(owner=np.array(each), launch_base=0) for each in owners]
    made = Accumulations(recorder, outputs={at: (cast("Any", region), 3) for at, region in enumerate(regions)})
    made.begin(cast("Any", SimpleNamespace(ordinal=7)))
    return {key: {name: at.tolist() for name, at in places.items()} for key, places in made.written().items()}


def tags(*rows: int, unit: str) -> Tags:
    made = Tags(unit=unit)
    for group, count in enumerate(rows):
        made.add("A", group, rows=count, k=64)
        made.add("B", group, rows=3, k=64)
    return made


def test_a_c_of_several_batches_is_that_of_their_groups() -> None:
    assert stored(tags(2, 2, unit="batch"), [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2]) == {
        (7, 0, 0): {"A": [0, 0, 0], "B": [0, 1, 2]},
        (7, 1, 0): {"A": [1, 1, 1], "B": [0, 1, 2]},
        (7, 1, 1): {"A": [0, 0, 0], "B": [0, 1, 2]},
        (7, 2, 1): {"A": [1, 1, 1], "B": [0, 1, 2]},
    }


def test_each_group_has_its_own_c() -> None:
    assert stored(tags(2, 1, unit="group"), [0, 0, 0, 1, 1, 1], [1, 1, 1]) == {
        (7, 0, 0): {"A": [0, 0, 0], "B": [0, 1, 2]},
        (7, 1, 0): {"A": [1, 1, 1], "B": [0, 1, 2]},
        (7, 1, 1): {"A": [0, 0, 0], "B": [0, 1, 2]},
    }


@pytest.mark.parametrize("unit", ["batch", "group"])
def test_a_tensor_is_named_by_its_batch_or_group(unit: str) -> None:
    assert str(tags(2, unit=unit).tensors[0]) == f"A of {unit} 0"

"""Arguments as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.device.source import ArgumentError, Array, Pointers, Reference, TensorMap, Uninitialised
from pytest_nvfp4.device.source.arguments import prepare
from pytest_nvfp4.device.source.described import described


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-0x10", -16),
        ("0.5", 0.5),
        ("true", True),
        ("hex:00ff", b"\x00\xff"),
        ("bf16:1", b"\x80\x3f"),
        ("&x+256", Reference("x", 256)),
        ("ptrs(x, y)", Pointers(("x", "y"))),
        ("y=f16[64,2]", Uninitialised((64, 2), "f16", "y")),
        (
            "map(x,box=64x8,swizzle=128B,oob=nan,strides=128)",
            TensorMap("x", (64, 8), strides=(128,), swizzle="128B", nan=True),
        ),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert described(text) == value


def test_numbers_of_a_type() -> None:
    value = described("u16:65535")
    assert (value, value.dtype) == (65535, np.uint16)


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("i32[2,2]:arange", [[0, 1], [2, 3]]),
        ("f16[2]:fill(1.5)", [1.5, 1.5]),
        ("bf16[2]:ones", [0x3F80, 0x3F80]),
        ("e4m3[1]:fill(0x38)", [0x38]),
    ],
)
def test_arrays(text: str, elements: Any) -> None:
    made = described(text)
    assert isinstance(made, Array)
    assert made.values.tolist() == elements


def test_random_elements_are_numbers_and_depend_on_the_seed() -> None:
    first, again, other = (described(f"e4m3[4096]:random({seed})").values for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.isin(first & 0x7F, [0x7F]).any()
    assert (np.abs(described("f32[4096]:random").values) < 8).all()
    one, two = (described("f32[64]:random", seed=seed).values for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.int16))
    made = described(f"x={tmp_path / 'x.npy'}")
    assert (made.name, made.values.tolist()) == ("x", [0, 1, 2])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("f33[4]", "type 'f33' does not exist"),
        ("f32[4]:some", "'some' is none of zeros"),
        ("u8:300", "300"),
        ("map(x)", "needs box"),
        ("map(x,box=4,colour=red)", "has no 'colour'"),
        ("five", "is no number"),
        ("n=5", "only an array has a name"),
        ("none.npy", "No such file"),
    ],
)
def test_wrong_texts(text: str, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        described(text)


def test_a_tensor_map_is_completed_by_its_array() -> None:
    made = prepare([described("map(x,box=64x8,swizzle=64B)"), described("x=f16[4,16,64]")])
    assert made.arguments[0]["map"] == {
        "array": "x", "element_type": 6, "dims": [64, 16, 4], "strides": [128, 2048], "box": [64, 8],
        "element_strides": [1, 1, 1], "oob_fill": 0, "swizzle": 2, "interleave": 0, "l2_promotion": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["x=f32[4]", "x=f32[4]"], "two arrays have the name x"),
        (["&y", "x=f32[4]"], "refers to 'y', which is no array; arrays are x"),
        (["x=f32[4]", "ptrs()"], "argument 1 is a table of no pointers: name arrays, or pass 0 for a null pointer"),
        (["x=f32[4]", "map(x,box=4,swizzle=9B)"], "swizzle '9B' is none of none, 32B"),
    ],
)
def test_wrong_references(texts: list[str], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        prepare([described(text) for text in texts])

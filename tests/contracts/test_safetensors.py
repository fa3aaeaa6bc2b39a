"""Tensors of safetensors files: files as the format's description lays them out, and files that it does not allow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.contracts.own.safetensors import tensor
from pytest_nvfp4.contracts.own.wrong import Wrong

torch = pytest.importorskip("torch")

VALUES = torch.arange(6, dtype=torch.int32).reshape(2, 3)
PLAIN: dict[str, Any] = {"dtype": "I32", "shape": [2, 3], "data_offsets": [2, 26]}
EIGHT: dict[str, Any] = {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}


def stored(folder: Path, header: object = None, *, length: int | None = None) -> Path:
    """Write a file with two bytes of 1.0 in E4M3, and then ``VALUES``."""
    made = {"__metadata__": {"format": "pt"}, "x": PLAIN, "s": EIGHT} if header is None else header
    text = json.dumps(made).encode()
    size = (len(text) if length is None else length).to_bytes(8, "little")
    path = folder / "blob.safetensors"
    path.write_bytes(size + text + b"\x38\x38" + VALUES.numpy().tobytes())
    return path


def test_a_tensor_has_its_type_shape_and_elements(tmp_path: Path) -> None:
    path = stored(tmp_path)
    assert torch.equal(tensor(path, "x"), VALUES)
    scales = tensor(path, "s")
    assert scales.dtype == torch.float8_e4m3fn
    assert scales.float().tolist() == [1.0, 1.0]
    empty = stored(tmp_path, {"e": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [26, 26]}})
    assert tensor(empty, "e").shape == (0, 4)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"x": {**PLAIN, "data_offsets": [3, 27]}}, r"x' is int32 \[2, 3\], and its data are bytes \[3, 27\)"),
        ({"x": {**PLAIN, "shape": [2, 4]}}, r"its data are bytes \[2, 26\)"),
        ({"x": {**PLAIN, "data_offsets": [26, 2]}}, r"its data are bytes \[26, 2\)"),
        ({"x": {**PLAIN, "data_offsets": [-2, 22]}}, "has no shape and data_offsets"),
        ({"x": {**PLAIN, "shape": [2, 3.0]}}, "has no shape and data_offsets"),
        ({"x": {**PLAIN, "shape": [True, 6]}}, "has no shape and data_offsets"),
        ({"x": {**PLAIN, "data_offsets": [26]}}, "has no shape and data_offsets"),
        ({"x": {"dtype": "I32"}}, "has no shape and data_offsets"),
        ({"x": 1}, "has no shape and data_offsets"),
        ({"x": {**PLAIN, "dtype": "C64"}}, "dtype C64, which is not supported"),
        ({"__metadata__": {}, "s": EIGHT}, "has no tensor 'x'; it has s"),
        ([], "it has none"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: object, said: str) -> None:
    with pytest.raises(Wrong, match=said):
        tensor(stored(tmp_path, header), "x")


def test_a_header_that_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    for length in (1 << 63, 1000):
        with pytest.raises(Wrong, match="goes beyond its end"):
            tensor(stored(tmp_path, length=length), "x")
    with pytest.raises(Wrong, match="header"):
        tensor(stored(tmp_path, length=5), "x")
    (tmp_path / "short.safetensors").write_bytes(b"123")
    with pytest.raises(Wrong, match="goes beyond its end"):
        tensor(tmp_path / "short.safetensors", "x")
    with pytest.raises(Wrong, match="cannot be read"):
        tensor(tmp_path / "none.safetensors", "x")

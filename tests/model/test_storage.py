"""Stored recordings: what is written is read back, and damage is one clear error."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.model import storage
from pytest_nvfp4.model.recording import Recording
from tests.model.recorded_kernels import pipeline


@pytest.fixture(scope="module")
def recording() -> Recording:
    return pipeline(6)[0]


def same(one: Recording, other: Recording) -> bool:
    """Whether two recordings are equal, arrays and their types included."""

    def plain(value):
        if isinstance(value, np.ndarray):
            return value.dtype, value.shape, value.tobytes()
        if isinstance(value, tuple | list):
            return [plain(each) for each in value]
        if hasattr(value, "__dataclass_fields__"):
            return [plain(getattr(value, name)) for name in value.__dataclass_fields__]
        return value

    return plain(one) == plain(other)


def test_recordings_are_read_back(recording: Recording, tmp_path: Path) -> None:
    storage.save(tmp_path / "kernel.npz", [recording, recording])
    one, other = storage.load(tmp_path / "kernel.npz")
    assert same(one, recording)
    assert same(other, recording)
    assert storage.loads(storage.dumps([])) == ()


def changed(data: bytes, name: str, change) -> bytes:
    """Return an archive with one member changed."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w") as made:
        for member in source.namelist():
            content = source.read(member)
            made.writestr(member, change(content) if member == f"{name}.npy" else content)
    return target.getvalue()


def array(values) -> bytes:
    target = io.BytesIO()
    np.save(target, values, allow_pickle=True)
    return target.getvalue()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("0.0.site", lambda _: array(np.zeros(3, np.int32)), "another type or length"),
        ("0.0.item", lambda old: array(np.load(io.BytesIO(old)) + 1000), "not from 0"),
        ("0.slots", lambda old: array(np.load(io.BytesIO(old)) + 1000), "not from -1"),
        ("0.lines", lambda old: array(np.load(io.BytesIO(old)) * 0), "not unique"),
        ("0.first", lambda old: old[:-3], "another type or length"),
        ("0.0.does", lambda _: array(np.array([{}], object)), "another type or length"),
        ("0.0.does", lambda old: array(np.load(io.BytesIO(old)) + 9), "not from 0"),
        ("header", lambda old: array(_version(np.load(io.BytesIO(old)))), "version 99 of its format"),
    ],
)
def test_damage_is_named(recording: Recording, name: str, change, words: str) -> None:
    data = storage.dumps([recording])
    with pytest.raises(DoorError, match=words):
        storage.loads(changed(data, name, change))
    storage.loads(changed(data, name, lambda old: old))  # a control: the archive is as good as before


def _version(header: np.ndarray) -> np.ndarray:
    value = json.loads(header.tobytes())
    return np.frombuffer(json.dumps(value | {"version": 99}).encode(), np.uint8)


def test_an_array_that_is_larger_than_its_bytes_takes_no_memory(recording: Recording) -> None:
    def huge(old: bytes) -> bytes:
        return old.replace(b"'shape': (6,)", b"'shape': (6000000000000,)").replace(b"      \n", b"\n")

    with pytest.raises(DoorError):
        storage.loads(changed(storage.dumps([recording]), "0.program", huge))


@given(st.data())
def test_any_damage_is_refused_or_harmless(recording: Recording, data: st.DataObject) -> None:
    whole = bytearray(storage.dumps([recording]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.sampled_from([len(whole), len(whole) // 2, 10]))
    with contextlib.suppress(DoorError):
        storage.loads(bytes(whole[:end]))

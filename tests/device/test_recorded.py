"""Recorded kernels in files of strangers: they open nothing, and run no Python."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any

import pytest

from pytest_nvfp4.device.recorded import recorded
from pytest_nvfp4.isolation.door import DoorError


def archive(**kernel: Any) -> bytes:
    """An archive whose kernel has these fields."""
    text = "{}"
    file = {"path": "r.json", "text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    fields = {"files": [file], "main": "r.json", "arch": "sm_100a", "recorded": "r.json", **kernel}
    case = {"problem": {"name": "p", "sizes": [[1, 128, 256, 1]], "seed": 1}, "family": "gpumode"}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        made.writestr("trace.json", "{}")
        made.writestr("host.json", json.dumps({"kernel": fields, "cases": [case]}))
    return packed.getvalue()


def test_nothing_of_this_machine_is_opened() -> None:
    kernel = recorded(archive(readable=["/home"], network=True), source="it").kernel
    assert (kernel.readable, kernel.network, kernel.recorded) == ((), False, "r.json")


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ({"recorded": None}, "its host code is not run here"),
        ({"recorded": "../r.json"}, "is not among the kernel's files"),
        ({"main": 7}, "main"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_refused(kernel: dict[str, Any], said: str) -> None:
    with pytest.raises(DoorError, match=said):
        recorded(archive(**kernel), source="it")

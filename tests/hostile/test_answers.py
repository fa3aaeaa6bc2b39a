"""Answers that lie: one finding with a sentence for each, and never green."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.serialization import unpack_result
from pytest_nvfp4.device.verdict import Judge
from tests.device.worker_events import result

from .answers import ANSWERS, REMOTE
from .doors import VERIFY

_MOST_S = 60
_MOST_BYTES = 1 << 30


@pytest.mark.parametrize("name", ANSWERS)
def test_a_lying_worker_is_not_believed(tmp_path: Path, name: str) -> None:
    answer = ANSWERS[name]
    start = time.monotonic()
    tracemalloc.start()
    try:
        answered = result(answer.data or None, job=VERIFY)
        (verdict,) = Judge().judge(VERIFY, answered, folder=tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < _MOST_BYTES
    assert time.monotonic() - start < _MOST_S
    assert verdict.status != "passed"
    said = "\n".join(map(str, (*answered.findings, *verdict.findings)))
    assert re.search(answer.says, said), said[:2000]
    assert "Traceback" not in said
    assert len(said) < 1 << 20


@pytest.mark.parametrize("name", REMOTE)
def test_a_lying_machine_is_refused(name: str) -> None:
    with pytest.raises(RemoteError) as refused:
        unpack_result(REMOTE[name])
    assert len(str(refused.value)) < 2000

"""The recording of an H200, and comparisons of cases with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.silicon.cases import every_case
from tests.silicon.compare import differences
from tests.silicon.driver import CudaError, Gpu
from tests.silicon.model import Case
from tests.silicon.runners import Outputs, simulate
from tests.silicon.store import Record, Recording, keep, load

RECORDED = Path(__file__).parent / "h200.npz"
HOW = "run `python -m tests.silicon.record OUT_DIR` on a machine with an H200 and keep its h200.npz in tests/silicon"
PENDING: tuple[str, ...] = ()
"""To be recorded: cases that are newer than the recording, by the beginnings of their names.

``python -m tests.silicon.record OUT $(python -m tests.silicon.store --pending)``, then
``python -m tests.silicon.store tests/silicon/h200.npz OUT/h200.npz``.
"""


@cache
def recording() -> Recording | None:
    return load(RECORDED) if RECORDED.exists() else None


def recorded() -> Recording:
    found = recording()
    if found is None:
        pytest.skip(f"nothing is recorded: {HOW}")
    return found


def of(family: str) -> list[Case]:
    return [case for case in every_case() if case.name.startswith(family + ".")]


def stale(case: Case, record: Record) -> str:
    """Why a record is not of this case."""
    if record.ptx_sha256 != case.ptx_sha256:
        return f"{case.name}: its PTX is {case.ptx_sha256[:12]}, recorded was {record.ptx_sha256[:12]}"
    if record.inputs_sha256 != case.inputs_sha256:
        return f"{case.name}: its inputs are not those that were recorded"
    return ""


def pending(name: str) -> bool:
    """Whether a case waits for the next recording."""
    return name.startswith(PENDING)


def wrong(case: Case, ours: Outputs, record: Record) -> list[str]:
    """The differences that no rule allows."""
    found = differences(case, keep(case, ours), record.outputs)
    return [f"{case.name} / {item.part}: {item.message}" for item in found if not item.allowed]


def record_of(case: Case) -> Record:
    return Record(case.ptx_sha256, case.inputs_sha256, keep(case, simulate(case)))


def gpu() -> Gpu:
    try:
        found = Gpu()
    except (OSError, CudaError) as error:
        pytest.skip(f"no GPU: {error}")
    if found.capability != (9, 0):
        pytest.skip(f"{found.name} is no Hopper GPU, which these cases are for")
    return found

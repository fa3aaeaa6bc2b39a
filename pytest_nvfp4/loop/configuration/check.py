"""Check a file that a worker, a reviewer, the judge or a user writes: every fault, not only the first one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.isolation.door.models import faults
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.configuration.load import load_config
from pytest_nvfp4.loop.schemas import Candidate, Model, ReviewerVerdict, Verdict, WorkerResult

Kind = Literal["worker", "reviewer", "candidate", "verdict", "config"]
MODELS: Mapping[str, type[Model]] = {
    "worker": WorkerResult,
    "reviewer": ReviewerVerdict,
    "candidate": Candidate,
    "verdict": Verdict,
}
"""The schema of each kind that is JSON."""
_BOUNDS = Bounds(size=1 << 20, depth=16, values=100_000)
_MOST_PROBLEMS = 100


def check_file(path: Path, kind: Kind, *, root: Path) -> list[str]:
    """Return what is wrong with a file, a line each; nothing if it is valid.

    Args:
        path: The file.
        kind: What it should be.
        root: Root of the repository, which the paths of a configuration are relative to.

    Raises:
        DoorError: It is no regular file of a bounded size, or no JSON.
        OSError: It cannot be read.
    """
    data = read_file(path, source=str(path), most=_BOUNDS.size)
    if kind == "config":
        try:
            load_config(root, file=path)
        except ConfigError as error:
            return list(error.problems[:_MOST_PROBLEMS])
        return []
    values = read_json(data, source=str(path), bounds=_BOUNDS)
    try:
        MODELS[kind].model_validate(values)
    except ValidationError as error:
        return [fault for fault, _ in zip(faults(error), range(_MOST_PROBLEMS), strict=False)]
    return []

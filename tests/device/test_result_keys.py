"""Every input of a simulation is in the key of its cached result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.device.remote.cache import cache_fields
from pytest_nvfp4.device.result_cache import ResultKeys
from pytest_nvfp4.device.verify import verify_job
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.toolchain.cache import content_key

CASE = JobCase(problem=ProblemSpec.of(parse_shape("5x128x256")), family="gpumode")


def spec(folder: Path, text: str = "def custom_kernel(data): ...\n") -> KernelSpec:
    """A kernel with an entry beside it."""
    (folder / "k.py").write_text(text)
    (folder / "build.py").write_text("def go(): ...\n")
    return KernelSpec.from_files(folder / "k.py", arch="sm_100a", entry="go", entry_file=folder / "build.py")[0]


def other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case str():
            return f"{value}x"
        case tuple():
            return (*value, *value[:1]) if value else ("x",)
        case None:
            return "build.py::go"
    raise AssertionError(value)


@pytest.mark.parametrize("name", [name for name in KernelSpec.model_fields if name != "files"])
def test_every_field_of_a_kernel_counts(tmp_path: Path, name: str) -> None:
    kernel = spec(tmp_path)
    value = "build.py" if name in ("main", "recorded") else other(getattr(kernel, name))
    changed = kernel.model_copy(update={name: value})
    keys = ResultKeys()
    assert keys.key(kernel, CASE) == keys.key(spec(tmp_path), CASE)
    assert keys.key(changed, CASE) != keys.key(kernel, CASE)
    assert _remote(changed) != _remote(kernel)


def test_every_file_of_a_kernel_counts(tmp_path: Path) -> None:
    keys, kernel = ResultKeys(), spec(tmp_path)
    (tmp_path / "build.py").write_text("def go(): return 1\n")
    changed = KernelSpec.from_files(tmp_path / "k.py", arch="sm_100a", entry="go", entry_file=tmp_path / "build.py")[0]
    assert keys.key(changed, CASE) != keys.key(kernel, CASE)
    assert keys.key(spec(tmp_path, "# changed\n"), CASE) != keys.key(kernel, CASE)
    assert _remote(changed) != _remote(kernel)


def test_every_field_of_a_case_counts(tmp_path: Path) -> None:
    keys, kernel = ResultKeys(), spec(tmp_path)
    problem = CASE.problem
    for changed in (
        CASE.model_copy(update={"family": "nan_pad"}),
        CASE.model_copy(update={"problem": problem.model_copy(update={"seed": problem.seed + 1})}),
        CASE.model_copy(update={"problem": problem.model_copy(update={"sizes": ((5, 128, 512, 1),)})}),
    ):
        assert keys.key(kernel, changed) != keys.key(kernel, CASE)


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_LIBRARY_PATH", "NVFP4_SANDBOX"])
def test_variables_of_a_worker_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kernel = spec(tmp_path)
    before = ResultKeys().key(kernel, CASE)
    monkeypatch.setenv(name, "off")
    assert ResultKeys().key(kernel, CASE) != before


def _remote(kernel: KernelSpec) -> str:
    job = verify_job(kernel, [CASE], deadline_s=1.0, seed=1)
    return content_key(cache_fields(job, Batch(jobs=(job,))))

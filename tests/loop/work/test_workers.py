"""The policy, worker and reviewer of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.work.reviewer import CommandReviewer, ManualReviewer
from pytest_nvfp4.loop.work.worker import CommandWorker
from pytest_nvfp4.loop.work.worker_manual import ManualWorker
from pytest_nvfp4.loop.work.workers import cautions, make_policy, make_reviewer, make_worker
from tests.loop.repositories import FILES, KERNEL, make_repository, opened

SETTINGS = """
[tool.pytest.ini_options]
nvfp4_snapshots = "shots"
"""


def config_of(**sections: object) -> LoopConfig:
    return LoopConfig.model_validate({"kernel": {"file": KERNEL}, "worker": {"command": ("sh",)}, **sections})


def repository_of(tmp_path: Path) -> GitRepository:
    files = {**FILES, "pyproject.toml": SETTINGS, "shots/k.txt": ""}
    return opened(make_repository(tmp_path / "r", files))


def test_what_the_settings_name_is_never_changed(tmp_path: Path) -> None:
    repository = repository_of(tmp_path)
    assert make_policy(config_of(), repository).allows(KERNEL)
    for pattern in ("shots/*", "shots/"):
        with pytest.raises(ConfigError, match="is never changed"):
            make_policy(config_of(policy={"may_change": (pattern,)}), repository)
    allowed = make_policy(config_of(policy={"may_change": ("kernels/other.py",)}), repository)
    assert allowed.allows("kernels/other.py")


def test_the_mode_decides_who_works_and_reviews(tmp_path: Path) -> None:
    repository = repository_of(tmp_path)
    state = StateFolder(tmp_path / "r/.nvfp4/loop")

    def prompt(*_: object, answer: Path) -> str:
        return str(answer)

    made = {}
    for mode in ("command", "manual"):
        config = config_of(mode=mode, reviewer={"command": ("sh",)})
        worker = make_worker(config, repository, state, make_policy(config, repository))
        made[mode] = (type(worker), type(make_reviewer(config, repository, state, prompt=prompt)))
    assert made == {"command": (CommandWorker, CommandReviewer), "manual": (ManualWorker, ManualReviewer)}
    assert make_reviewer(config_of(), repository, state, prompt=prompt) is None


def test_what_is_not_committed_or_not_confined_is_said(tmp_path: Path) -> None:
    repository = repository_of(tmp_path)
    state = StateFolder(tmp_path / "r/.nvfp4/loop")
    policy = make_policy(config_of(), repository)
    config = config_of(worker={"command": ("sh",), "sandbox": "off"})
    (tmp_path / "r/conftest.py").write_text("x = 1")
    changed, off = cautions(repository, make_worker(config, repository, state, policy), None)
    assert "not the changes of conftest.py" in changed
    assert off.startswith("the worker is not confined completely: the sandbox is off")

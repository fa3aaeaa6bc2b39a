"""Benchmarks through modal, on a container's device whose clock is made up (``loopback.devices.clocked``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..loopback import Loopback
from .user import KERNELS, User

pytest.importorskip("pytest_benchmark")
TWO = """
[tool.pytest_nvfp4]
problems.small = { m = [40, 8], n = 128, k = 256 }

[[tool.pytest_nvfp4.kernel]]
path = "kernel.py"
name = "a"
problems = ["small"]
benchmark-problems = ["small"]

[[tool.pytest_nvfp4.kernel]]
path = "kernel.py"
name = "b"
problems = ["small"]
benchmark-problems = ["small"]
compile-options = ["--opt-level 2"]
"""
ONE = TWO.rpartition("[[")[0]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clocked") / "log"


@pytest.fixture(scope="module")
def clocked(log: Path) -> Iterator[Loopback]:
    with Loopback(backend="clocked:run", environ={"NVFP4_CLOCKED_LOG": str(log)}) as server:
        yield server


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def user(clocked: Loopback, tmp_path: Path, log: Path, cache: Path) -> User:
    clocked.forget()
    log.write_text("")
    made = User(clocked, tmp_path, cache=cache)
    made.write("kernel.py", f"TAKES_US = 50.0\n{(KERNELS / 'honest.py').read_text()}")
    made.write("pyproject.toml", f"[tool.pytest.ini_options]\n{ONE}")
    return made


@dataclass(frozen=True)
class Block:
    """What a container timed in one process: its problems, rounds, and inputs on which launches were counted."""

    container: int
    options: str
    problems: list[str]
    rounds: int
    counted: int


def blocks(log: Path) -> list[Block]:
    """All blocks, in their order."""
    return [Block(*json.loads(line)) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_a_comparison_is_one_container_and_its_kernels_take_turns(user: User, log: Path) -> None:
    user.write("pyproject.toml", f"[tool.pytest.ini_options]\n{TWO}")
    more = ["--nvfp4-remote-containers=4", "--nvfp4-rounds=40", "--benchmark-json=times.json"]
    said = user.run("kernel.py", "-k", "benchmark", *more, benchmark=True)
    assert "2 passed" in said, said
    done = [block for block in blocks(log) if not block.counted]
    assert len({block.container for block in done}) == 1, "one container, although there could be four"
    turns = ["b" if "--opt-level 2" in block.options else "a" for block in done]
    assert turns == list("abbaabba"), "in turn, so that the drift of the clock meets both alike"
    assert sum(block.rounds for block in done if not block.options) == 40
    again = [block for block in blocks(log) if block.counted]
    assert [block.rounds for block in again] == [10, 10], "each is timed once more, in a process of its own"
    assert user.server.count("FunctionMap") == 3
    stored = json.loads((user.folder / "times.json").read_text())["benchmarks"]
    first, second = (one["stats"]["median"] for one in stored)
    assert 1.09 < second / first < 1.11, "one after the other, the drift would have made 1.19 of it"
    table = said.partition("nvfp4: device times")[2].partition("nvfp4: modal")[0]
    assert "made-up clock" in table
    assert "NVIDIA B200" not in table


@pytest.mark.slow
def test_a_baseline_of_the_same_device_judges_and_one_of_another_is_refused(user: User) -> None:
    check = ["kernel.py", "-k", "benchmark", "--nvfp4-rounds=50"]
    said = user.run(*check, "--benchmark-autosave", benchmark=True)
    assert "1 passed" in said, said
    stored = list((user.folder / ".benchmarks").rglob("*.json"))
    assert len(stored) == 1, "one file"
    (entry,) = json.loads(stored[0].read_text())["benchmarks"]
    assert "made-up clock" in json.dumps(entry["extra_info"]), "it says what measured"
    assert len(entry["stats"]["data"]) == 50
    same = user.run(*check, "--benchmark-compare", benchmark=True)
    assert "1 passed" in same, same
    user.write("kernel.py", (user.folder / "kernel.py").read_text().replace("50.0", "60.0"))
    slower = user.run(*check, "--benchmark-compare", benchmark=True)
    assert "1 failed" in slower, slower
    assert "slower than the baseline on Test stand-in with a made-up clock" in slower
    wrong = (user.folder / "kernel.py").read_text().replace("60.0", "50.0\nWRONG = True")
    user.write("kernel.py", wrong)
    assert "failed while it was timed on small" in user.run(*check, "--benchmark-compare", benchmark=True)
    user.write("kernel.py", wrong.replace("\nWRONG = True", ""))
    user.server.service.environ["NVFP4_CLOCKED_NAME"] = "Another stand-in"
    try:
        other = user.run(*check, "--benchmark-compare", benchmark=True)
    finally:
        del user.server.service.environ["NVFP4_CLOCKED_NAME"]
    assert "1 failed" in other, other
    assert "the baseline was measured on Test stand-in" in other
    assert "this run on Another stand-in" in other


@pytest.mark.slow
def test_a_rerun_takes_the_times_that_were_paid_for(user: User, log: Path) -> None:
    first = user.run("kernel.py", "-k", "benchmark", benchmark=True)
    assert "1 passed" in first, first
    count = len(blocks(log))
    again = user.run("kernel.py", "-k", "benchmark", "--nvfp4-resume", benchmark=True)
    assert "1 passed" in again, again
    assert "2 from earlier sessions" in again
    assert len(blocks(log)) == count


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_a_rerun_pays_only_for_what_was_not_measured(user: User, log: Path, resume: bool) -> None:
    """What shares a process is known one by one; without ``--nvfp4-resume`` all of it is measured again."""
    more = ONE.replace("\n\n", "\nproblems.other = { m = [24], n = 128, k = 256 }\n\n", 1)
    more = more.replace('benchmark-problems = ["small"]', 'benchmark-problems = ["small", "other"]')
    user.write("pyproject.toml", f"[tool.pytest.ini_options]\n{more}")
    first = user.run("kernel.py", "-k", "benchmark and small", benchmark=True)
    assert "1 passed" in first, first
    log.write_text("")
    again = user.run("kernel.py", "-k", "benchmark", *(["--nvfp4-resume"] if resume else []), benchmark=True)
    assert "2 passed" in again, again
    timed = [block.problems for block in blocks(log)]
    assert timed == 2 * ([["other"]] if resume else [["small", "other"]])

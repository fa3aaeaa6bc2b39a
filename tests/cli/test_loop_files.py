"""``nvfp4 loop init``, ``check``, ``progress`` and ``candidates``: what they write, and with which status they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.loop.configuration.load import load_config
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.work.progress import PROGRESS_VARIABLE
from tests.cli.helpers import Result, git
from tests.loop.records import candidate, keep, measured, result

Cli = Callable[..., Result]
KERNEL = "def custom_kernel(data):\n    return data\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git("init", "-q", cwd=tmp_path)
    (tmp_path / "k.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)
    return tmp_path.resolve()


def settings(root: Path, text: str) -> None:
    (root / "pyproject.toml").write_text(f"[tool.pytest_nvfp4]\n{text}")


@pytest.mark.parametrize("worker", ["claude", "codex", "gemini", "python my_worker.py --fast"])
def test_init_writes_a_configuration_that_can_be_read(cli: Cli, root: Path, worker: str) -> None:
    done = cli("loop", "init", "k.py", "--worker", worker)
    assert done.code == 0
    path = root / "nvfp4-loop.toml"
    assert done.out == path.read_text()
    assert f"wrote {path}" in done.err
    config = load_config(root)
    assert config.kernel.file == "k.py"
    assert config.worker.command[0] == worker.split(maxsplit=1)[0]
    assert config.worker.network == (worker in ("claude", "codex", "gemini"))
    assert not any("dangerous" in word or "bypass" in word or "yolo" in word for word in config.worker.command)
    assert cli("loop", "check", "nvfp4-loop.toml", "--kind", "config").code == 0


def test_init_without_a_worker_leaves_it_open(cli: Cli, root: Path) -> None:
    done = cli("loop", "init", "k.py")
    assert done.code == 0
    assert "set worker.command in it" in done.err
    assert "worker.command is missing" in cli("loop", "check", "nvfp4-loop.toml", "--kind", "config").out
    for mode in ("manual", "dry-run"):
        assert load_config(root, overrides=[f"mode={mode}"]).mode == mode
    assert load_config(root, overrides=["worker.command=agent"]).worker.command == ("agent",)


def test_init_never_overwrites_without_force(cli: Cli, root: Path) -> None:
    path = root / "nvfp4-loop.toml"
    path.write_text("mine")
    done = cli("loop", "init", "k.py")
    assert done.code == Exit.USAGE
    assert "--force overwrites it" in done.err
    assert path.read_text() == "mine"
    assert cli("loop", "init", "k.py", "--show").code == 0
    assert path.read_text() == "mine"
    assert cli("loop", "init", "k.py", "--force").code == 0
    assert load_config(root, overrides=["mode=manual"]).kernel.file == "k.py"


def test_init_shows_without_writing(cli: Cli, root: Path) -> None:
    done = cli("loop", "init", "k.py", "--show")
    assert "[kernel]" in done.out
    shown = json.loads(cli("loop", "init", "k.py", "--show", "--json").out)
    assert shown["text"] == done.out
    assert shown["written"] is False
    assert shown["config"]["kernel"]["file"] == "k.py"
    assert not (root / "nvfp4-loop.toml").exists()


def test_init_takes_problems_from_the_settings(cli: Cli, root: Path) -> None:
    own = "problems.small = { m = [40, 96], n = 128, k = 256 }\n"
    table = '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nbenchmark-problems = ["small", "96x128x256,64x128x256"]\n'
    settings(root, own + table)
    assert cli("loop", "init").code == 0
    assert load_config(root, overrides=["mode=manual"]).kernel.problems == ("small", "96x128x256,64x128x256")
    settings(root, own + table + 'model-problems = ["gpumode-0"]\n')
    assert cli("loop", "init", "--force").code == 0
    assert load_config(root, overrides=["mode=manual"]).kernel.problems == ("gpumode-0",)


def test_init_asks_for_one_of_several(cli: Cli, root: Path) -> None:
    assert "no kernel is named" in cli("loop", "init").err
    tables = "".join(f'[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nname = "{name}"\n' for name in ("one", "two"))
    settings(root, tables)
    assert "choose with --config" in cli("loop", "init").err
    assert cli("loop", "init", "--config", "two").code == 0
    assert load_config(root, overrides=["mode=manual"]).kernel.config == "two"
    (root / "other.py").write_text(KERNEL)
    settings(root, '[[tool.pytest_nvfp4.kernel]]\npath = "*.py"\n')
    assert "names several kernels, k.py, other.py" in cli("loop", "init").err


def test_init_refuses_what_is_no_kernel(cli: Cli, root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (root / "no.py").write_text("x = 1\n")
    assert "defines no custom_kernel(data)" in cli("loop", "init", "no.py").err
    assert "no such file" in cli("loop", "init", "none.py").err
    outside = tmp_path_factory.mktemp("outside") / "k.py"
    outside.write_text(KERNEL)
    (root / "link.py").symlink_to(outside)
    assert "is not in the repository" in cli("loop", "init", "link.py").err
    assert "No closing quotation" in cli("loop", "init", "k.py", "--worker", "a 'b").err
    assert "--worker is empty" in cli("loop", "init", "k.py", "--worker", " ").err
    assert not (root / "nvfp4-loop.toml").exists()


def test_init_refuses_a_kernel_with_an_entry(cli: Cli, root: Path) -> None:
    settings(root, '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nentry = "k.py::build"\n')
    assert "has an entry in its settings" in cli("loop", "init", "k.py").err


def test_init_works_below_the_root(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "ops").mkdir()
    (root / "ops/k.py").write_text(KERNEL)
    monkeypatch.chdir(root / "ops")
    assert cli("loop", "init", "k.py").code == 0
    assert load_config(root, overrides=["mode=manual"]).kernel.file == "ops/k.py"


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ('{"iteration": 1, "kernel_path": "k.py", "decision": "KEEP"}', Exit.FINE, "f.json: valid"),
        ('{"iteration": 0, "decision": "KEPT"}', Exit.FAILED, "lacks kernel_path"),
        ("none", Exit.USAGE, "is not JSON"),
        (None, Exit.USAGE, "No such file"),
    ],
)
def test_check_ends_with_0_1_or_2(cli: Cli, root: Path, text: str | None, code: Exit, expected: str) -> None:
    if text is not None:
        (root / "f.json").write_text(text)
    done = cli("loop", "check", "f.json", "--kind", "worker")
    assert done.code == code
    assert expected in (done.err if code is Exit.USAGE else done.out)
    if code is Exit.FAILED:
        assert len(done.out.splitlines()) == 3
        shown = json.loads(cli("loop", "check", "f.json", "--kind", "worker", "--json").out)
        assert shown["valid"] is False
        assert shown["problems"] == done.out.splitlines()


def test_progress_needs_a_file(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("loop", "progress", "--time-us", "3")
    assert done.code == Exit.USAGE
    assert PROGRESS_VARIABLE in done.err
    assert json.loads(cli("loop", "progress", "--time-us", "3", "--file", "p.json").out)["best_time_us"] == 3.0
    monkeypatch.setenv(PROGRESS_VARIABLE, str(root / "q.json"))
    cli("loop", "progress", "--time-us", "5", "--status", "benchmark", "--note", "n", "--artifact", "a", "--error", "e")
    shown = json.loads(cli("loop", "progress", "--time-us", "7", "--error", "f", "--iteration", "2").out)
    assert shown == json.loads((root / "q.json").read_text())
    assert shown["updated_at"]
    del shown["updated_at"]
    assert shown == {
        "version": 1, "metric_name": "gmean_us", "status": "benchmark", "best_time_us": 5.0, "last_time_us": 7.0,
        "best_artifact": "a", "last_artifact": None, "note": "n", "errors": ["e", "f"], "updates": 2,
        "source": "worker", "iteration": 2,
    }  # fmt: skip


@pytest.mark.parametrize("time", ["-1", "nan", "inf", "1e18", "fast"])
def test_progress_refuses_what_is_no_time(cli: Cli, root: Path, time: str) -> None:
    assert cli("loop", "progress", "--time-us", time, "--file", "p.json").code == Exit.USAGE
    assert not (root / "p.json").exists()


@pytest.fixture
def state(root: Path) -> StateFolder:
    folder = StateFolder(root / ".nvfp4" / "loop")
    keep(folder, result(candidate(1), "five stages"), "faster")
    keep(folder, result(candidate(2), "no fence\x1b[2J"), "rejected", red="races", feedback="a fence is missing")
    keep(folder, result(candidate(3), "other raster"), "undecided", comparisons=(measured(1.001),))
    keep(folder, candidate(4, end="failed", commit=None, tree=None, problems=("it crashed",)), "no-candidate")
    keep(folder, candidate(5))
    (folder.candidate(1) / "diff.patch").write_text("-STAGES = 4\n+STAGES = 5  # \x1b]0;x\x07\n")
    return folder


@pytest.mark.usefixtures("state")
def test_candidates_are_listed_and_searched(cli: Cli) -> None:
    rows = json.loads(cli("loop", "candidates", "--json").out)["candidates"]
    assert [row["candidate"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["outcome"] for row in rows] == ["faster", "rejected", "undecided", "no-candidate", "pending"]
    assert (rows[0]["gain"], rows[0]["gate"], rows[1]["gate"]) == (pytest.approx(0.1), None, "races")
    assert rows[0]["modelled_us"] == {"p": 10.0}
    assert rows[2]["measured"][0]["ratio"] == 1.001

    def listed(*arguments: str) -> list[int]:
        shown = json.loads(cli("loop", "candidates", "--json", *arguments).out)
        return [row["candidate"] for row in shown["candidates"]]

    assert listed("--search", "FENCE") == [2]
    assert listed("--outcome", "faster", "--outcome", "pending") == [1, 5]
    assert listed("--search", "raster", "--outcome", "faster") == []
    text = cli("loop", "candidates").out
    assert "five stages" in text
    assert text.split()[:4] == ["candidate", "iteration", "by", "outcome"]
    assert "\x1b" not in text
    assert "no candidates" in cli("loop", "candidates", "--search", "zzz").out
    assert cli("loop", "candidates", "--csv").out.startswith("candidate,iteration,by,outcome,gate,value,gain_percent")


@pytest.mark.usefixtures("state")
def test_one_candidate_is_shown(cli: Cli) -> None:
    shown = cli("loop", "candidates", "--show", "2").out
    for part in ("a fence is missing", "races found k.py:3: hint", "no fence", "10.000"):
        assert part in shown
    assert "\x1b" not in shown
    assert "1.0010" in cli("loop", "candidates", "--show", "3").out
    assert "it crashed" in cli("loop", "candidates", "--show", "4").out
    data = json.loads(cli("loop", "candidates", "--show", "2", "--json").out)
    assert data["verdict"]["outcome"] == "rejected"
    assert data["candidate"]["number"] == data["examination"]["candidate"] == 2


@pytest.mark.usefixtures("state")
def test_a_diff_is_shown_without_escapes(cli: Cli) -> None:
    shown = cli("loop", "candidates", "--diff", "1").out
    assert "+STAGES = 5  # \\x1b]0;x\\x07" in shown
    assert json.loads(cli("loop", "candidates", "--diff", "1", "--json").out)["diff"].count("\x1b") == 1


def test_what_is_not_there_is_named(cli: Cli, root: Path) -> None:
    assert "no such directory of state" in cli("loop", "candidates").err
    folder = StateFolder(root / "s")
    keep(folder, candidate(1, end="unchanged"), "no-candidate")
    for arguments, expected in (
        (["--show", "7"], "has no candidate 7"),
        (["--diff", "1"], "candidate 1 has no diff: unchanged"),
        (["--diff", "1", "--show", "1"], "give one of them"),
    ):
        done = cli("loop", "candidates", "--state", "s", *arguments)
        assert done.code == Exit.USAGE
        assert expected in done.err
    (folder.candidate(1) / "verdict.json").write_text("none")
    done = cli("loop", "candidates", "--state", "s")
    assert done.code == Exit.USAGE
    assert "verdict.json is not JSON" in done.err

"""One call: deadline, bounded output, clean environment, and an end that leaves nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.cli.mcp.calls import Answer, Limits, call
from pytest_nvfp4.cli.mcp.roots import RefusedError, Roots
from pytest_nvfp4.cli.mcp.tools import Tool
from pytest_nvfp4.isolation import StoppedError
from tests.cli.helpers import ROOT
from tests.cli.mcp.programs import Program, UserProgram
from tests.waiting import locked, until

SMALL = Limits(timeout_s=120, characters=10_000)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("pytest_nvfp4.cli.mcp.calls.GRACE_S", 0.0)


def done(tool: Tool, folder: Path, limits: Limits = SMALL) -> Answer:
    """The answer of a call."""
    return call(tool, Roots((folder,)), limits, stop=threading.Event())


def test_a_failed_check_is_a_result_and_wrong_usage_is_an_error(tmp_path: Path) -> None:
    assert (one := done(Program(what="exit", argument="1"), tmp_path)).to_json()["ok"] is False
    assert not one.failed
    assert one.text == "said 1"
    two = done(Program(what="exit", argument="2"), tmp_path)
    assert two.failed
    assert "exit code 2\ncomplained" in two.text


def test_a_user_s_program_has_its_own_exit_code(tmp_path: Path) -> None:
    answer = done(UserProgram(what="exit", argument="2"), tmp_path)
    assert not answer.failed
    assert answer.exit_code == 2
    assert answer.text == "exit code 2\nsaid 2\n--- standard error\ncomplained"


@pytest.mark.parametrize("tool", [Program, UserProgram])
def test_a_hundred_megabytes_are_bounded(tmp_path: Path, tool: type[Program]) -> None:
    answer = done(tool(what="flood", argument="100"), tmp_path)
    assert len(answer.text) < 10_100
    assert answer.dropped > 99_000_000
    assert "characters dropped" in answer.text


def test_json_is_whole_or_an_error(tmp_path: Path) -> None:
    assert done(Program(what="json", argument='{"a": 1}', format="json"), tmp_path).document == {"a": 1}
    for what, argument, says in (
        ("flood", "1", "longer than the 10000 that fit"), ("json", "{", "no JSON"), ("json", "[]", "no object"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=says):
            done(Program(what=what, argument=argument, format="json"), tmp_path)


def test_the_environment_is_clean_and_the_folder_stands_for_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVFP4_SANDBOX", "off")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--x")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("NVFP4_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    facts = json.loads(done(Program(what="facts"), tmp_path).text)
    assert facts["environ"]["NVFP4_SANDBOX"] == "auto"
    assert facts["environ"]["NVFP4_CACHE_DIR"] == str(tmp_path / "cache")
    assert not {"PYTEST_ADDOPTS", "SECRET_TOKEN", "NVFP4_PARENT_PID"} & set(facts["environ"])
    assert facts["cwd"] == str(tmp_path)
    assert not {"", str(tmp_path)} & set(facts["path"])
    assert facts["argv"][1:] == ["facts", "--timeout=120", "--", ""]


def test_an_agent_cannot_raise_the_time_limit(tmp_path: Path) -> None:
    facts = json.loads(done(Program(what="facts", timeout_s=5000), tmp_path).text)
    assert "--timeout=120" in facts["argv"]


def test_a_command_that_never_ends_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    file = tmp_path / "held"
    file.write_text("")
    answer = done(Program(what="hold", argument=str(file), timeout_s=1), tmp_path)
    assert answer.failed
    assert "raise timeout_s" in answer.text
    assert until(lambda: not locked(file))


def test_a_call_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    file, stop, ended = tmp_path / "held", threading.Event(), []
    file.write_text("")

    def work() -> None:
        with pytest.raises(StoppedError):
            call(Program(what="hold", argument=str(file)), Roots((tmp_path,)), SMALL, stop=stop)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    assert until(lambda: locked(file))
    stop.set()
    thread.join()
    assert ended
    assert until(lambda: not locked(file))

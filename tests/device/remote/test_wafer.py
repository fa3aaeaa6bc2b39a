"""wafer against a stand-in for its command line, whose sandbox is a folder of this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import BatchResult, ProgramRemote, PythonProgram, RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.wafer import WaferRemote, WaferTarget
from tests.device.remote import stand_ins
from tests.device.remote.programs import HONEST, batch_of
from tests.waiting import LONGEST_S, alive, until

Make = Callable[[str], WaferRemote]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_ins.wafer(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin:/bin")
    return folder


@pytest.fixture
def remote() -> Iterator[Make]:
    made: list[WaferRemote] = []

    def make(target: str) -> WaferRemote:
        made.append(WaferRemote(RemoteOptions(target=target, timeout_s=LONGEST_S)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def end(remote: WaferRemote) -> BatchResult | RemoteError:
    (arrival,) = remote.collect(remote.submit([batch_of(HONEST)]), timeout_s=LONGEST_S)
    found = arrival.result or arrival.error
    assert found is not None
    return found


def verbs(there: Path) -> list[list[str]]:
    called = [json.loads(line)[0] for line in (there / "calls").read_text().splitlines()]
    return [arguments for arguments in called if "--help" not in arguments]


@pytest.mark.slow
def test_a_batch_in_a_sandbox(there: Path, remote: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-planted")
    one = remote(f"box?python={sys.executable}&price=3.6")
    answer = end(one)
    assert isinstance(answer, BatchResult), answer
    (result,) = answer.results
    # Nothing here is a CUDA device: that is what the far side has to say, on a machine without a GPU.
    assert result.status in ("unavailable", "unsupported", "passed"), result.findings
    assert result.findings or result.status == "passed"
    one.stop()
    assert [arguments[1] for arguments in verbs(there)] == ["create", "run", "delete"]
    run = verbs(there)[1]
    assert run[run.index("--sandbox") + 1] == "sandbox-1a2b"
    assert run[run.index("--target") + 1] == "box"
    assert run[run.index("--idle-timeout-sec") + 1] == run[run.index("--timeout-sec") + 1]
    assert (there / "left").read_text() == "False", "what was synced is removed there"
    assert "as-planted" not in (there / "calls").read_text()
    assert one.cost().usd_per_hour == 3.6
    assert one.cost().seconds > 0


@pytest.mark.slow
def test_a_program_in_a_sandbox(there: Path, remote: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-planted")
    one = remote(f"box?python={sys.executable}")
    assert isinstance(one, ProgramRemote)
    said: list[bytes] = []
    source = "import os, sys; print(sys.argv[1:], open('a').read(), 'as-planted' in str(os.environ)); sys.exit(5)"
    program = PythonProgram(source, arguments=("x y",), files={"a": b"mounted"})
    assert one.execute(program, on_output=lambda _, piece: said.append(piece)) == 5
    assert b"".join(said) == b"['x y'] mounted False\n"
    (there / "error").write_text("Error: not logged in")
    with pytest.raises(RemoteError, match="wafer login"):
        one.execute(program, on_output=lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("there")
def test_a_program_may_take_longer_than_a_machine_is_waited_for() -> None:
    target = f"box?python={sys.executable}&sandbox=mine"
    one = WaferRemote(RemoteOptions(target=target, timeout_s=0.5))
    program = PythonProgram("import sys, time; time.sleep(0.6); sys.exit(5)", deadline_s=LONGEST_S)
    assert one.execute(program, on_output=lambda *_: None) == 5
    one.stop()


@pytest.mark.parametrize(
    ("help_", "said"),
    [
        ({}, "sandbox run does not exist"),
        ({"sandbox run": "--target --timeout-sec"}, "has no option --sync, --cd"),
    ],
)
def test_what_this_version_lacks_is_said(there: Path, remote: Make, help_: dict[str, str], said: str) -> None:
    stand_ins.wafer(there, help_=help_)
    one = remote("box")
    error = end(one)
    assert isinstance(error, RemoteError)
    assert error.kind == "version"
    assert said in str(error)
    assert said in one.status().summary


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        ("Error: not logged in. Run wafer login", "login"),
        ("Error: target box not found", "setup"),
        ("Error: could not connect to host", "network"),
        ("odd", "remote"),
    ],
)
def test_troubles(there: Path, remote: Make, words: str, trouble: str) -> None:
    (there / "error").write_text(words)
    error = end(remote("box"))
    assert isinstance(error, RemoteError)
    assert error.kind == trouble
    assert words in str(error)


def test_what_is_cancelled_ends_and_its_sandbox_goes(there: Path, remote: Make) -> None:
    (there / "sleep").touch()
    one = remote(f"box?python={sys.executable}")
    calls = one.submit([batch_of(HONEST), batch_of(HONEST)])
    assert until((there / "started").exists)
    pid = int((there / "started").read_text())
    one.cancel(calls)
    ends = list(one.collect(calls, timeout_s=LONGEST_S))
    assert [end.error and end.error.kind for end in ends] == ["cancelled", "cancelled"]
    assert until(lambda: not alive(pid))
    one.stop()
    assert (there / "deleted").read_text() == "sandbox-1a2b", "once stop returns, nothing is left that costs"
    assert [arguments[1] for arguments in verbs(there)] == ["create", "run", "delete"]


def test_a_cancel_leaves_the_users_own_sandbox(there: Path, remote: Make) -> None:
    (there / "sleep").touch()
    one = remote(f"box?python={sys.executable}&sandbox=mine")
    calls = one.submit([batch_of(HONEST)])
    assert until((there / "started").exists)
    one.cancel(calls)
    (end,) = one.collect(calls, timeout_s=LONGEST_S)
    assert end.error is not None
    assert end.error.kind == "cancelled"
    one.stop()
    assert [arguments[1] for arguments in verbs(there)] == ["run"]


@pytest.mark.slow
def test_an_answer_that_is_cut(there: Path, remote: Make) -> None:
    (there / "cut").touch()
    error = end(remote(f"box?python={sys.executable}&sandbox=mine"))
    assert isinstance(error, RemoteError)
    assert error.kind == "lost"
    assert [arguments[1] for arguments in verbs(there)] == ["run"], (
        "a sandbox of the user's is neither made nor deleted"
    )


def test_targets() -> None:
    assert WaferTarget.parse("box?sandbox=s&python=/a/b&price=2") == WaferTarget("box", "s", "/a/b", 2.0)
    for wrong in ("-x", "box?sandbox=-x", "box?a=b", "box?price=x"):
        with pytest.raises(RemoteError):
            WaferTarget.parse(wrong)

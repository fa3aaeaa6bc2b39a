"""popcorn against a stand-in for popcorn-cli, and the forms of its output."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import Batch, ProgramRemote, RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.popcorn import PopcornRemote, PopcornTarget
from pytest_nvfp4.device.remote.popcorn_output import parse
from pytest_nvfp4.device.result import Result
from tests.device.remote import stand_ins
from tests.device.remote.programs import HONEST, batch_of
from tests.waiting import LONGEST_S, alive, far_enough, until


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in, which is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_ins.popcorn(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin:/bin")
    return folder


@pytest.fixture
def remote() -> Iterator[PopcornRemote]:
    made = PopcornRemote(RemoteOptions(timeout_s=LONGEST_S))
    yield made
    made.stop()


def end(remote: PopcornRemote, batch: Batch) -> Result | RemoteError:
    (arrival,) = remote.collect(remote.submit([batch]), timeout_s=10 * LONGEST_S)
    if arrival.error is not None:
        return arrival.error
    assert arrival.result is not None
    return arrival.result.results[0]


def calls(there: Path) -> list[tuple[list[str], dict[str, str]]]:
    return [json.loads(line) for line in (there / "calls").read_text().splitlines()]


@pytest.mark.parametrize(
    "text",
    [stand_ins.REPORT, json.dumps(stand_ins.REPORT), json.dumps([stand_ins.REPORT]), f"noise\n{stand_ins.REPORT}"],
)
def test_the_report(text: str) -> None:
    said = parse(text)
    assert (said.format, said.passed, said.passed_tests, said.runner) == ("text", True, (2, 2), "NVIDIA B200")
    assert [test.spec for test in said.tests] == [stand_ins.TESTS, stand_ins.OTHER]
    first, second = said.benchmarks
    assert first.spec.startswith("m: [80, 176]")
    assert (first.mean_ns, first.err_ns, first.best_ns, first.worst_ns) == pytest.approx((27900, 50, 27500, 30100))
    assert (second.mean_ns, second.err_ns, second.best_ns) == (1.24e6, None, None)


def test_reports_of_failures() -> None:
    said = parse(stand_ins.TESTING_FAILED)
    assert (said.passed, said.failure) == (False, "Testing")
    assert [(test.passed, test.message[:14]) for test in said.tests] == [(True, ""), (False, "mismatch found")]
    said = parse(stand_ins.RUNNING_FAILED)
    assert (said.passed, said.failure, said.exit_code) == (False, "Running", 112)
    assert parse(stand_ins.TIMED_OUT).exit_code == "timeout"


def test_the_json() -> None:
    said = parse(stand_ins.JSON)
    assert (said.format, said.passed, said.identity, said.runner) == ("json", True, "4711", "B200_Nebius")
    assert said.scores == (("public", 1.311e-05),)
    assert "geometric mean 13.110 us (public)" in said.summary()
    failed = stand_ins.JSON.replace('"passed": true', '"passed": false', 1)
    assert parse(failed).passed is False
    assert parse(stand_ins.JSON.replace('"done": true', '"done": false')).passed is None


@pytest.mark.parametrize("text", ["", "hello", "{}", '{"a": 1}', "[1, 2]", "null"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        parse(text)


def test_a_pass_of_theirs_is_no_pass_of_ours(there: Path, remote: PopcornRemote) -> None:
    (there / "answer").write_text(stand_ins.REPORT)
    result = end(remote, batch_of(HONEST))
    assert isinstance(result, Result)
    assert result.status == "unavailable"
    assert "GPU MODE's own test on NVIDIA B200 passed (passed 2 of 2 tests" in result.reason
    assert "the exact oracle has not verified" in result.reason
    assert not isinstance(remote, ProgramRemote)
    assert remote.cost().usd == 0


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (stand_ins.TESTING_FAILED, "failed", "passed 1 of 2 tests"),
        (stand_ins.RUNNING_FAILED, "error", "exit code 112"),
        (stand_ins.TIMED_OUT, "timeout", "running failed"),
        (stand_ins.JSON.replace('"passed": true', '"passed": false'), "failed", "leaderboard failed on B200_Nebius"),
        (stand_ins.JSON.replace('"done": true', '"done": false'), "unavailable", "has not ended"),
    ],
)
def test_their_verdicts(there: Path, remote: PopcornRemote, text: str, status: str, said: str) -> None:
    (there / "answer").write_text(text)
    result = end(remote, batch_of(HONEST))
    assert isinstance(result, Result)
    assert result.status == status
    assert said in result.reason
    if status == "failed" and "Testing" in text:
        assert "doesn't match reference" in result.findings[0].detail


def test_a_file_is_submitted_once_a_mode(there: Path, remote: PopcornRemote, tmp_path: Path) -> None:
    (there / "answer").write_text(stand_ins.JSON)
    kernel = tmp_path / "kernel.py"
    kernel.write_text(f"#!POPCORN leaderboard other\n#!POPCORN gpu NVIDIA\n{HONEST.read_text()}")
    for _ in range(2):
        end(remote, batch_of(kernel))
    benchmark = end(remote, batch_of(kernel, action="benchmark"))
    assert isinstance(benchmark, Result)
    assert "no single times" in benchmark.reason
    submitted = [arguments for arguments, _ in calls(there) if "--help" not in arguments]
    assert [arguments[arguments.index("--mode") + 1] for arguments in submitted] == ["test", "benchmark"]
    assert submitted[0][submitted[0].index("--gpu") + 1] == "NVIDIA", "the file's own directive"
    assert submitted[0][submitted[0].index("--leaderboard") + 1] == "nvfp4_group_gemm"
    assert "--no-tui" in submitted[0]
    assert set(remote._submissions) == {
        (batch_of(kernel).jobs[0].kernel.sha256, mode) for mode in ("test", "benchmark")
    }  # type: ignore[union-attr]


def test_the_environment_holds_no_secret(there: Path, monkeypatch: pytest.MonkeyPatch, remote: PopcornRemote) -> None:
    (there / "answer").write_text(stand_ins.REPORT)
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-planted")
    monkeypatch.setenv("POPCORN_API_URL", "http://127.0.0.1:1")
    end(remote, batch_of(HONEST))
    assert "as-planted" not in (there / "calls").read_text()
    assert all(environ["POPCORN_API_URL"] for _, environ in calls(there))


def test_older_versions_print_their_result(there: Path, remote: PopcornRemote) -> None:
    stand_ins.popcorn(there, options="--gpu --leaderboard --mode")
    (there / "answer").write_text(stand_ins.REPORT)
    result = end(remote, batch_of(HONEST))
    assert isinstance(result, Result)
    assert "passed 2 of 2 tests" in result.reason
    assert not {"--no-tui", "--output"} & set(calls(there)[-1][0])


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        ("Config file not found. Please run `popcorn register` first.", "login"),
        ("Server returned status 401: Unauthorized", "login"),
        ("POPCORN_API_URL is not set", "network"),
        ("Stream ended unexpectedly without a final result", "network"),
        ("something else", "remote"),
    ],
)
def test_troubles(there: Path, remote: PopcornRemote, error: str, trouble: str) -> None:
    (there / "error").write_text(error)
    found = end(remote, batch_of(HONEST))
    assert isinstance(found, RemoteError)
    assert (found.kind, error in str(found)) == (trouble, True)


def test_what_is_missing_is_named(there: Path, remote: PopcornRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.popcorn(there, options="--gpu")
    found = end(remote, batch_of(HONEST))
    assert isinstance(found, RemoteError)
    assert found.kind == "version"
    assert "popcorn-cli submit has no option --leaderboard, --mode" in str(found)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "popcorn-cli or popcorn is not on PATH" in PopcornRemote(RemoteOptions()).status().summary


def test_it_is_not_waited_for_without_end(there: Path) -> None:
    (there / "sleep").touch()
    found = far_enough(
        lambda timeout_s: end(PopcornRemote(RemoteOptions(timeout_s=timeout_s)), batch_of(HONEST)),
        lambda _: (there / "started").exists(),
    )
    assert isinstance(found, RemoteError)
    assert found.kind == "timeout"
    remote = PopcornRemote(RemoteOptions())
    (there / "started").unlink()
    calls = remote.submit([batch_of(HONEST)])
    assert until((there / "started").exists)
    pid = int((there / "started").read_text())
    threading.Timer(0.1, remote.cancel, [calls]).start()
    (arrival,) = remote.collect(calls, timeout_s=LONGEST_S)
    assert arrival.error is not None
    assert arrival.error.kind == "cancelled"
    assert until(lambda: not alive(pid))


def test_only_a_single_file_can_be_submitted(there: Path, remote: PopcornRemote, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("X = 1\n")
    (tmp_path / "kernel.py").write_text("import helper\n")
    batch = batch_of(HONEST)
    from pytest_nvfp4.device.job import KernelSpec

    spec, _ = KernelSpec.from_files(tmp_path / "kernel.py", others=[tmp_path / "helper.py"], arch="sm_100a")
    job = batch.jobs[0].model_copy(update={"kernel": spec})
    result = end(remote, Batch(jobs=(job,)))
    assert isinstance(result, Result)
    assert result.status == "unsupported"
    assert "helper.py, kernel.py" in result.reason
    assert not (there / "calls").exists()


def test_targets() -> None:
    assert PopcornTarget.parse("") == PopcornTarget("nvfp4_group_gemm")
    assert PopcornTarget.parse("x?mode=leaderboard&gpu=NVIDIA") == PopcornTarget("x", "leaderboard", "NVIDIA")
    for wrong in ("x?mode=profile", "x?a=b", "--help"):
        with pytest.raises(RemoteError):
            PopcornTarget.parse(wrong if wrong != "--help" else "a b")

"""The view of a directory of state: complete, half written, damaged, of a dead loop, of another host, of none."""

import os
from pathlib import Path

import pytest

from pytest_nvfp4.loop.schemas import WorkerProgress
from pytest_nvfp4.loop.state import Control, Spent, StateFolder, write_model
from pytest_nvfp4.loop.view.view import LoopReader, LoopView, diff_of, output_of, tail
from tests.loop.samples import NOW, FixedClock, Sample, night, promotion


def read(folder: StateFolder) -> LoopView:
    return LoopReader(folder, FixedClock()).read()


def test_a_directory_that_does_not_exist_holds_no_loop(tmp_path: Path) -> None:
    view = read(StateFolder(tmp_path / "none"))
    assert view.life == "absent"
    assert view.candidates == ()
    assert view.problems == ()
    assert not (tmp_path / "none").exists()


def test_a_loop_is_read_whole(tmp_path: Path) -> None:
    view = read(night(tmp_path).folder)
    assert view.life == "stopped"
    assert view.name == "night"
    assert view.config is not None
    assert view.config.budget.iterations == 40
    assert [each.number for each in view.candidates] == [1, 2, 3, 4, 5, 6]
    assert view.candidates[1].verdict is not None
    assert view.log[-2].endswith("candidate 1 is promoted")
    assert view.problems == ()


def test_life_is_that_of_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("JUDGE")
    assert read(sample.folder).life == "dead"
    sample.runs(1)
    assert read(sample.folder).life == "running"
    sample.died()
    assert read(sample.folder).life == "dead"


def test_a_loop_of_another_host_lives_as_long_as_its_heartbeat_is_fresh(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("JUDGE")
    sample.runs(host="elsewhere")
    assert read(sample.folder).life == "running"

    class Later(FixedClock):
        def now(self) -> float:
            return NOW + 601

    assert LoopReader(sample.folder, Later()).read().life == "dead"


def test_spending_is_that_of_earlier_iterations_and_of_the_current_one(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("JUDGE")
    sample.runs(spent=Spent(wall_s=700, gpu_s=0, usd=2.5))
    spent = read(sample.folder).spent
    assert (spent.wall_s, spent.gpu_s, spent.usd, spent.tokens) == (700, 12, 2.5, 5000)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"version": 2}', b'{"phase": "\\u0000"}'])
def test_a_damaged_file_is_named_and_the_rest_is_read(tmp_path: Path, content: bytes) -> None:
    sample = night(tmp_path)
    (sample.folder.candidate(2) / "verdict.json").write_bytes(content)
    view = read(sample.folder)
    assert view.candidates[1].verdict is None
    assert view.candidates[1].candidate is not None
    assert view.candidates[5].verdict is not None
    (problem,) = view.problems
    assert "0002/verdict.json" in problem


def test_things_in_place_of_files_are_no_files(tmp_path: Path) -> None:
    sample = night(tmp_path)
    verdict = sample.folder.candidate(6) / "verdict.json"
    verdict.unlink()
    os.mkfifo(verdict)
    sample.folder.log.unlink()
    os.mkfifo(sample.folder.log)
    (sample.folder.root / "candidates" / "0007").write_text("no folder")
    (sample.folder.root / "candidates" / "nonsense").mkdir()
    view = read(sample.folder)
    assert "a pipe" in view.problems[0]
    assert view.log == ()
    assert [each.number for each in view.candidates] == [1, 2, 3, 4, 5, 6, 7]


def test_a_reader_sees_what_has_changed_and_reads_nothing_twice(tmp_path: Path) -> None:
    sample = night(tmp_path)
    reader = LoopReader(sample.folder, FixedClock())
    first = reader.read()
    again = reader.read()
    assert all(old.verdict is new.verdict for old, new in zip(first.candidates, again.candidates, strict=True))
    sample.candidate(6, outcome="undecided", us=99.0)
    changed = reader.read().candidates[5].verdict
    assert changed is not None
    assert changed.outcome == "undecided"
    (sample.folder.candidate(6) / "verdict.json").unlink()
    assert reader.read().candidates[5].verdict is None


def test_active_candidates_are_those_of_the_heartbeat_with_what_their_workers_claim(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("RUN_WORKER")
    sample.gates(7, "compile")
    progress = WorkerProgress(status="benchmark", best_time_us=5.0)
    write_model(sample.folder.candidate(8) / "worker_progress.json", progress)
    sample.runs(7, 8)
    view = read(sample.folder)
    assert [each.number for each in view.active] == [7, 8]
    assert [gate.gate for gate in view.active[0].gates] == ["compile"]
    assert view.active[0].progress is None
    assert view.active[1].progress is not None
    assert view.active[1].progress.best_time_us == 5.0
    sample.died()
    assert read(sample.folder).active == ()


def test_a_request_is_shown(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("JUDGE", [promotion(1, 90.0)])
    sample.control(Control(stop="after-iteration"))
    assert read(sample.folder).control.stop == "after-iteration"


def test_the_tail_of_a_long_file_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(b"".join(b"line %d\n" % at for at in range(100_000)) + b"\xff end")
    assert tail(file, 2) == ("line 99998", "line 99999", "\ufffd end")
    assert tail(tmp_path / "none") == ()
    link = tmp_path / "link.log"
    link.symlink_to(file)
    assert tail(link) == ()


def test_the_output_of_a_worker_is_the_log_that_was_written_last(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    assert output_of(sample.folder.candidate(1)) == ("", ())
    sample.output(1, b"old\n", "worker_attempt_1.stdout.log")
    sample.output(1, b"new\n", "worker_attempt_2.stderr.log")
    os.utime(sample.folder.candidate(1) / "worker_attempt_1.stdout.log", ns=(1, 1))
    sample.output(1, b"", "worker_attempt_3.stdout.log")
    (sample.folder.candidate(1) / "prompt.txt").write_text("no output")
    name, lines = output_of(sample.folder.candidate(1))
    assert name == "worker_attempt_2.stderr.log"
    assert lines[0] == "new"


def test_a_diff_is_bounded_and_missing_ones_are_empty(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, diff="+x\n" * 200_000)
    assert diff_of(sample.folder, 1).startswith("+x\n")
    assert len(diff_of(sample.folder, 1)) == 256 << 10
    assert diff_of(sample.folder, 2) == ""

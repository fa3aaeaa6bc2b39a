"""How a loop ends: limits, requests, times, signals, failures; and how it goes on after that."""

# ruff: noqa: ARG002 - stand-ins take what the protocols name

import errno
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.machine.lock import LockedError
from pytest_nvfp4.loop.machine.resume import ChangedError
from pytest_nvfp4.loop.machine.session import StateError
from pytest_nvfp4.loop.protocols import InfrastructureError, Task
from pytest_nvfp4.loop.schemas import Candidate, ReviewerVerdict
from pytest_nvfp4.loop.state import Control, Heartbeat, LoopState, read_model, write_model

from .stubs import FixedClock, StubJudge, StubLoop, StubReviewer, StubWorker, sha

Settings = dict[str, dict[str, object]]


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug in these tests."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def _loop(root: Path, **settings: dict[str, object]) -> StubLoop:
    values: Settings = {"budget": {"iterations": 4}, **settings}
    return StubLoop(root, values)


class Patient(StubWorker):
    """A worker that does something before it ends."""

    def __init__(self, act: Callable[[Task], None]) -> None:
        super().__init__()
        self.act = act

    def run(self, task: Task) -> Candidate:
        self.act(task)
        return super().run(task)


class Improving(StubWorker):
    """A worker whose candidates are always new."""

    def run(self, task: Task) -> Candidate:
        made = super().run(task).model_copy(update={"end": "proposed"})
        new = {"commit": sha("c", task.number), "tree": sha("t", task.number), "source_sha256": None}
        return made.model_copy(update=new)


class Failing(StubWorker):
    """A worker that cannot be started."""

    def run(self, task: Task) -> Candidate:
        super().run(task)
        raise InfrastructureError("no such program")


class Idle(StubWorker):
    """A worker that changes nothing."""

    def run(self, task: Task) -> Candidate:
        return super().run(task).model_copy(update={"end": "unchanged", "commit": None, "tree": None})


def test_no_progress_ends_the_loop_and_a_new_run_tries_as_often_again(tmp_path: Path) -> None:
    loop = _loop(tmp_path, limits={"no_progress": 2}, budget={"iterations": 100})
    loop.worker = Idle()
    for iterations in (2, 4):
        end = loop.session().run()
        assert end.reason == "limits.no_progress = 2: as many iterations in a row promoted nothing"
        assert end.state.iteration == iterations


def test_workers_that_cannot_be_started_are_tried_twice_and_end_the_loop(tmp_path: Path) -> None:
    loop = _loop(tmp_path, limits={"infrastructure_failures": 3}, budget={"iterations": 100})
    loop.worker = Failing()
    end = loop.session().run()
    assert end.reason == "limits.infrastructure_failures = 3: as many iterations in a row failed"
    assert loop.worker.runs == [1, 1, 2, 2, 3, 3]
    assert end.state.no_progress == 0
    assert [event for event, _ in loop.notes.events] == ["infrastructure"] * 3 + ["stopped"]
    assert "no such program" in loop.notes.events[0][1]
    loop.worker = StubWorker()
    assert loop.session().run().state.infrastructure_failures == 0


def test_the_threshold_must_be_met_in_iterations_in_a_row(tmp_path: Path) -> None:
    loop = _loop(tmp_path, target={"threshold": 1e6, "confirmations": 3}, limits={"no_progress": 100})
    loop.worker = Idle()
    end = loop.session().run()
    assert end.state.iteration == 3
    assert end.reason.startswith("target.threshold = 1e+06 is met in 3 iterations in a row: modelled is")
    unmet = _loop(tmp_path / "unmet", target={"threshold": 1e-6, "confirmations": 1})
    unmet.root.mkdir()
    assert unmet.session().run().state.iteration == 4


@pytest.mark.parametrize(
    ("budget", "reason", "iterations"),
    [
        ({"tokens": 250}, "budget.tokens = 250 is reached: 300 tokens", 3),
        ({"dollars": 1}, "budget.dollars = 1 is reached: 1 USD", 2),
        ({"dollars": 0}, "budget.dollars = 0 is reached: 0.5 USD", 1),
    ],
)
def test_what_workers_report_counts(tmp_path: Path, budget: dict[str, object], reason: str, iterations: int) -> None:
    loop = _loop(tmp_path, budget={"iterations": 9, **budget}, limits={"no_progress": 100})
    end = loop.session().run()
    assert (end.status, end.reason, end.state.iteration) == ("stopped", reason, iterations)
    again = loop.session().run()  # it is over all runs
    assert (again.reason, again.state.iteration) == (reason, iterations)
    more = _loop(tmp_path, budget={"iterations": 9}, limits={"no_progress": 100})
    assert more.session().run().state.iteration == 9


def test_nothing_begins_that_might_exceed_the_ceiling(tmp_path: Path) -> None:
    loop = _loop(tmp_path, budget={"dollars": 20, "iterations": 50}, limits={"no_progress": 100})
    loop.worker, loop.judge = Improving(), StubJudge(usd=3.0)
    end = loop.session().run()
    assert end.status == "stopped"
    assert end.spent.usd <= 20
    assert "budget.dollars = 20 does not suffice: the next stage may take 3 USD" in end.reason
    assert end.state.interrupted == "JUDGE"
    more = _loop(tmp_path, budget={"dollars": 25, "iterations": 50}, limits={"no_progress": 100})
    more.worker, more.judge = loop.worker, loop.judge
    made = len(loop.worker.runs)
    assert more.session().run().spent.usd > end.spent.usd
    assert loop.worker.runs[made:][:1] != [made]  # the candidate that waited was not made again


def test_what_would_be_promoted_does_not_wait_for_more_money(tmp_path: Path) -> None:
    # In one iteration: a second one has money for its workers if a stage of the first ends before another begins.
    loop = _loop(tmp_path, budget={"dollars": 22, "iterations": 1}, worker={"candidates": 8})

    class Cheaper(StubJudge):
        """Each candidate is better than the one before it."""

        def value(self, examination: Any) -> float | None:
            return 100.0 * 0.9**examination.candidate if examination.passed else None

    def wait(number: int) -> None:
        """Examine no further before the first candidate is decided: on a slow machine no money would be left for it."""
        for _ in range(2000 if number > 2 else 0):
            if (loop.folder.candidate(1) / "verdict.json").exists():
                return
            threading.Event().wait(0.01)

    loop.worker, loop.judge = Improving(), Cheaper(usd=3.0, wait=wait)
    end = loop.session().run()
    assert end.state.phase == "STOPPED"
    assert end.state.interrupted == ""
    assert end.state.promotions
    assert loop.repository.incumbent() == end.state.promotions[-1].commit
    outcomes = [read["outcome"] for name, read in loop.history().items() if name.endswith("verdict.json")]  # type: ignore[index]
    assert len(outcomes) == 8
    assert {"faster", "undecided"} <= set(outcomes)
    assert end.spent.usd <= 22


def test_a_reservation_counts_if_the_process_is_killed(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Killing(StubJudge):
        def decide(self, *arguments: Any, purse: Any, **others: Any) -> Any:
            purse.reserve(usd=7.0, gpu_s=100)
            raise Killed

    loop = _loop(tmp_path, budget={"dollars": 15, "iterations": 9})
    loop.worker, loop.judge = Improving(), Killing()
    for _ in range(2):
        with pytest.raises(Killed):
            loop.session().run()
    end = loop.session().run()
    assert end.status == "stopped"
    assert end.reason == "budget.dollars = 15 does not suffice: the next stage may take 7 USD, and 0.5 USD are left"
    assert end.spent.gpu_s == 200


@pytest.mark.parametrize("now", [False, True])
def test_a_request_stops_it(tmp_path: Path, now: bool) -> None:
    loop = _loop(tmp_path)
    ended: list[int] = []

    def act(task: Task) -> None:
        if task.number == 2 and not ended:
            control = Control(stop="now" if now else "after-iteration", reason="lunch")
            write_model(loop.folder.control, control)
            if now:
                for _ in range(2000):  # a worker that ends only when it is ended
                    try:
                        cancellation.check()
                    except cancellation.StoppedError:
                        ended.append(task.number)
                        raise
                    threading.Event().wait(0.01)

    loop.worker = Patient(act)
    end = loop.session(pulse_s=0.01).run()
    assert end.status == "stopped"
    assert end.reason.endswith(": lunch")
    assert (end.state.iteration, end.state.interrupted) == (2, "RUN_WORKER" if now else "")
    assert ended == ([2] if now else [])
    again = loop.session().run()  # a request is for the run that it was made to
    assert again.reason == "budget.iterations = 4 is reached"
    assert loop.worker.runs == [1, 2, 3, 4]


def test_ctrl_c_ends_the_worker_and_keeps_everything(tmp_path: Path) -> None:
    loop = _loop(tmp_path)
    ended = threading.Event()

    def act(task: Task) -> None:
        if task.number == 2 and not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(2000):
                try:
                    cancellation.check()
                except cancellation.StoppedError:
                    ended.set()
                    raise
                threading.Event().wait(0.01)

    loop.worker = Patient(act)
    end = loop.session().run()
    assert (end.status, end.reason) == ("interrupted", "interrupted by Ctrl-C")
    assert ended.is_set()
    assert (end.state.phase, end.state.interrupted) == ("STOPPED", "RUN_WORKER")
    loop.session().run()
    plain = _loop(tmp_path / "plain")
    plain.root.mkdir()
    plain.session().run()
    assert loop.history() == plain.history()


class SteppedClock(FixedClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds, self.wall = 0.0, 1_800_000_000.0

    def now(self) -> float:
        return self.wall

    def running(self) -> float:
        return self.seconds

    def passing(self) -> float:
        return self.seconds


def test_wall_clock_is_counted_over_runs_and_by_no_clock_that_jumps(tmp_path: Path) -> None:
    clock = SteppedClock()
    loop = _loop(tmp_path, budget={"minutes": 10, "iterations": 100}, limits={"no_progress": 100})

    def act(_: Task) -> None:
        clock.seconds += 100
        clock.wall += 1e6 if int(clock.seconds) % 200 else -3e6  # somebody sets it

    loop.worker = Patient(act)
    first = loop.session(clock=clock).run()
    assert first.reason == "budget.minutes = 10 is reached: 10 min"
    assert first.spent.wall_s == 600
    assert loop.worker.runs[-1] == 6
    clock.seconds += 1e6  # between two runs no time is counted
    assert loop.session(clock=clock).run().spent.wall_s == 600
    more = _loop(tmp_path, budget={"minutes": 12, "iterations": 100}, limits={"no_progress": 100})
    more.worker = loop.worker
    assert more.session(clock=clock).run().spent.wall_s == 800


def test_the_wall_clock_of_a_process_that_was_killed_counts(tmp_path: Path) -> None:
    clock = SteppedClock()
    loop = _loop(tmp_path, budget={"minutes": 10, "iterations": 100})

    class Killed(BaseException):
        pass

    def act(_: Task) -> None:
        clock.seconds += 400
        raise Killed

    loop.worker = Patient(act)
    with pytest.raises(Killed):
        loop.session(clock=clock).run()
    beat = read_model(loop.folder.heartbeat, Heartbeat)
    assert beat is not None
    assert beat.spent.wall_s == 400
    with pytest.raises(Killed):
        loop.session(clock=clock).run()
    assert loop.session(clock=clock).run().reason == "budget.minutes = 10 is reached: 13.33 min"


def test_until_ends_what_runs(tmp_path: Path) -> None:
    loop = _loop(tmp_path)
    clock = SteppedClock()

    def act(task: Task) -> None:
        assert task.timeout_s <= 50
        clock.seconds += 60
        for _ in range(2000):
            cancellation.check()
            threading.Event().wait(0.01)

    loop.worker = Patient(act)
    end = loop.session(clock=clock, until_s=50.0, pulse_s=0.01).run()
    assert (end.status, end.reason, end.state.interrupted) == (
        "stopped", "the time of --until is reached", "RUN_WORKER"
    )  # fmt: skip


def test_until_ends_the_examination_of_the_kernel_at_the_start(tmp_path: Path) -> None:
    loop, clock = _loop(tmp_path), SteppedClock()

    def wait(number: int) -> None:
        clock.seconds += 60
        for _ in range(2000 if number == 0 else 0):
            cancellation.check()
            threading.Event().wait(0.01)

    loop.judge = StubJudge(wait=wait)
    end = loop.session(clock=clock, until_s=50.0, pulse_s=0.01).run()
    assert (end.status, end.state.phase, end.state.interrupted) == ("stopped", "STOPPED", "INIT")
    assert loop.judge.examined == [0]


def test_a_reviewer_stops_it(tmp_path: Path) -> None:
    class Blocked(StubReviewer):
        def review(self, iteration: int, *arguments: Any, **others: Any) -> ReviewerVerdict:
            made = super().review(iteration, *arguments, **others)
            return made.model_copy(update={"verdict": "STOP_BLOCKED" if iteration == 2 else "CONTINUE"})

    loop = _loop(tmp_path)
    loop.reviewer = Blocked()
    end = loop.session().run()
    assert (end.status, end.reason) == ("stopped", "the reviewer says STOP_BLOCKED: so it is")
    assert end.state.iteration == 2
    assert loop.session().run().state.iteration == 4


def test_a_reviewer_without_an_answer_ends_the_run_and_is_asked_again(tmp_path: Path) -> None:
    class Silent(StubReviewer):
        def review(self, *arguments: Any, **others: Any) -> ReviewerVerdict:
            raise InfrastructureError("no review")

    loop = _loop(tmp_path)
    loop.reviewer = Silent()
    end = loop.session().run()
    assert (end.status, end.reason, end.state.interrupted) == ("failed", "no review", "RUN_REVIEWER")
    assert not end.state.promotions
    loop.reviewer = StubReviewer()
    assert loop.session().run().state.iteration == 4
    assert loop.reviewer.reviewed[0] == end.state.iteration


def test_a_defect_of_a_part_does_not_end_the_loop(tmp_path: Path) -> None:
    class Broken(StubJudge):
        def examine(self, candidate: Any, **others: Any) -> Any:
            if candidate is not None and candidate.number % 2:
                raise ZeroDivisionError("a defect")
            return super().examine(candidate, **others)

    loop = _loop(tmp_path)
    loop.judge, loop.worker = Broken(), Improving()
    end = loop.session().run()
    assert end.state.iteration == 4
    assert "ZeroDivisionError: a defect" in json.dumps(loop.history()["candidates/0001/verdict.json"])


def test_a_red_kernel_at_the_start_is_refused(tmp_path: Path) -> None:
    class Red(StubJudge):
        def examine(self, *arguments: Any, **others: Any) -> Any:
            made = super().examine(*arguments, **others)
            red = made.gates[-1].model_copy(update={"outcome": "failed"})
            return made.model_copy(update={"passed": False, "gates": (*made.gates[:-1], red)})

    loop = _loop(tmp_path)
    loop.judge = Red()
    end = loop.session().run()
    assert end.status == "failed"
    assert "because the gate verify is failed: one element" in end.reason
    assert "--fresh-start" in end.reason
    assert loop.worker.runs == []
    loop.judge = StubJudge()
    assert loop.session().run().status == "failed"  # it is the same kernel
    loop.repository.file.write_text(json.dumps([sha("mended")]))
    assert loop.session().run().state.baseline == sha("mended")


def test_a_moved_branch_is_refused(tmp_path: Path) -> None:
    loop = _loop(tmp_path)
    loop.session().run()
    commits = loop.repository.commits()
    loop.repository.file.write_text(json.dumps([*commits, sha("somebody")]))
    more = _loop(tmp_path, budget={"iterations": 6})
    end = more.session().run()
    assert end.status == "failed"
    assert sha("somebody") in end.reason
    assert commits[-1] in end.reason
    loop.repository.file.write_text(json.dumps(commits))
    assert more.session().run().state.iteration == 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_at_any_write_stops_it_and_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    replace, left = Path.replace, [1 << 30]

    def full(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(code, os.strerror(code), str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    plain = _loop(tmp_path / "plain", budget={"iterations": 2})
    plain.root.mkdir()
    plain.session().run()
    expected, writes = plain.history(), (1 << 30) - left[0]
    ends = set()
    for number in (*range(1, 8), *range(8, writes - 3, 3)):  # the first ones are those of the lock and of the state
        root = tmp_path / f"{number}"
        root.mkdir()
        left[0] = number
        full_loop = _loop(root, budget={"iterations": 2})
        end = full_loop.session(show=full_loop.lines.append).run()
        assert os.strerror(code) in full_loop.lines[-1], "people read it where it cannot be logged"
        ends.add((end.status, os.strerror(code) in end.reason))
        left[0] = 1 << 30
        _loop(root, budget={"iterations": 2}).session().run()
        assert _loop(root).history() == expected, f"full at write {number}"
    assert ends == {("failed", True)}


def test_the_same_state_or_branch_is_used_by_one_process(tmp_path: Path) -> None:
    loop, refused = _loop(tmp_path), list[str]()
    branch = tmp_path / "git" / "loop.machine.lock"

    def act(_: Task) -> None:
        other = _loop(tmp_path / "other")
        for second in (loop.session(), other.session(branch_lock=branch)):
            try:
                second.run()
            except LockedError as error:
                refused.append(str(error))
        free = _loop(tmp_path / "free", budget={"iterations": 1})
        free.root.mkdir(exist_ok=True)
        free.session(branch_lock=tmp_path / "git" / "free.lock").run()

    loop.worker = Patient(act)
    loop.session(branch_lock=branch).run()
    assert len(refused) == 8
    assert str(loop.folder.root) in refused[0]
    assert "the branch nvfp4-loop/loop is in use" in refused[1]


def test_a_configuration_that_changes_the_meaning_is_refused(tmp_path: Path) -> None:
    _loop(tmp_path).session().run()
    for changed in (
        {"target": {"metric": "counter:x"}},
        {"worker": {"candidates": 2}},
        {"kernel": {"file": "other.py"}},
        {"judge": {"gates": ["compile", "verify"]}},
        {"policy": {"layouts": "reported"}},
    ):
        loop = _loop(tmp_path, **changed)  # type: ignore[arg-type]
        section, key = next((name, next(iter(value))) for name, value in changed.items())
        with pytest.raises(ChangedError, match=rf"{section}\.{key} \(.* -> .*--fresh-start"):
            loop.session().run()
    free = _loop(
        tmp_path, judge={"jobs": 4}, budget={"iterations": 5}, limits={"no_progress": 50}, notify={"timeout_s": 3}
    )
    assert free.session().run().state.iteration == 5


def test_a_fresh_start_keeps_the_old_records(tmp_path: Path) -> None:
    loop, retired = _loop(tmp_path), list[bool]()
    loop.session().run()
    old = loop.history()
    again = _loop(tmp_path, target={"least_gain": 0.25})
    again.repository.file = tmp_path / "branch2.json"
    retire = lambda: retired.append(loop.folder.state.exists())  # noqa: E731
    end = again.session(set_aside=retire).run(fresh=True)
    assert retired == [True]
    assert end.state.restarts == 0
    kept = [path for path in tmp_path.iterdir() if path.name.startswith("state.")]
    assert len(kept) == 1
    moved = _loop(tmp_path / "moved")
    moved.repository.file = loop.repository.file
    moved.root.mkdir()
    kept[0].rename(tmp_path / "moved" / "state")
    assert moved.history() == old


def test_records_without_a_state_are_refused(tmp_path: Path) -> None:
    loop = _loop(tmp_path)
    loop.session().run()
    loop.folder.state.unlink()
    with pytest.raises(StateError, match="--fresh-start"):
        loop.session().run()
    assert _loop(tmp_path).session().run(fresh=True).state.iteration == 4


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_no_loop_made_is_left_alone(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "state" / "work").mkdir(parents=True)
    (tmp_path / "state" / "candidates" / "mine").mkdir(parents=True)
    files = {"work/notes.txt": "mine", ".gitignore": "build/\n", "state.json": "{}"}
    for name, text in files.items():
        (tmp_path / "state" / name).write_text(text)
    with pytest.raises(StateError, match="--state"):
        _loop(tmp_path).session().run(fresh=fresh)
    assert {name: (tmp_path / "state" / name).read_text() for name in files} == files
    assert [place.name for place in tmp_path.iterdir()] == ["state"]


def test_a_damaged_record_ends_the_run_with_the_way_out(tmp_path: Path) -> None:
    _loop(tmp_path, budget={"iterations": 1}).session().run()
    record = tmp_path / "state" / "baseline" / "examination.json"
    record.write_bytes(record.read_bytes()[:20])
    end = _loop(tmp_path, budget={"iterations": 2}).session().run()
    assert (end.status, str(record) in end.reason) == ("failed", True)
    assert end.reason.endswith("put a copy of the file back, or begin anew with --fresh-start")


def test_a_run_that_was_killed_before_its_first_record_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "state" / "lock").mkdir(parents=True)
    (tmp_path / "state" / "lock" / "active.lock.guard").touch()
    assert _loop(tmp_path).session().run().status == "stopped"


def test_old_outputs_are_removed_before_the_disk_budget_is_reached(tmp_path: Path) -> None:
    loop = _loop(tmp_path, budget={"iterations": 6, "disk_mb": 1.0})

    class Chatty(Improving):
        def run(self, task: Task) -> Candidate:
            (task.folder / "worker_attempt_1.stdout.log").write_bytes(os.urandom(400_000))
            return super().run(task)

    loop.worker = Chatty()
    end = loop.session().run()
    assert end.reason == "budget.iterations = 6 is reached"
    logs = sorted(path.parent.name for path in loop.folder.root.glob("candidates/*/*.log"))
    assert "0006" in logs
    assert "0001" not in logs or 1 in [one.candidate for one in end.state.promotions]
    assert len(list(loop.folder.root.glob("candidates/*/verdict.json"))) == 6
    full = _loop(tmp_path, budget={"iterations": 8, "disk_mb": 0.001})
    assert full.session().run().reason.startswith("budget.disk_mb = 0.001 is reached")


def test_the_state_says_what_comes_next(tmp_path: Path) -> None:
    loop = _loop(tmp_path)
    seen: list[tuple[str, int]] = []

    def act(_: Task) -> None:
        state = read_model(loop.folder.state, LoopState)
        assert state is not None
        seen.append((state.phase, state.iteration))

    loop.worker = Patient(act)
    loop.session(clock=Clock()).run()
    assert seen == [("RUN_WORKER", number) for number in range(1, 5)]

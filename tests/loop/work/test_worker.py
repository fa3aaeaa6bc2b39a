"""The command worker: what it gets, what it may do, and what becomes of what it leaves."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import StoppedError, stopped_by
from pytest_nvfp4.loop.configuration.config import WorkerSection
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.schemas import WorkerProgress, WorkerResult
from pytest_nvfp4.loop.state import read_model
from pytest_nvfp4.loop.work.worker import CommandWorker
from tests.loop.repositories import KERNEL, Footprint, user_git
from tests.loop.workers import Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return Bench(tmp_path / "user")


def test_a_changed_kernel_is_a_candidate(bench: Bench) -> None:
    before = Footprint.of(bench.top)
    candidate = bench.run("change(); result(tokens=7)")
    assert (candidate.end, candidate.files, candidate.violations, candidate.problems) == ("proposed", (KERNEL,), (), ())
    assert bench.kernel(candidate) == "STAGES = 2\n"
    assert candidate.result is not None
    assert (candidate.result.tokens, candidate.result.summary) == (7, "two stages")
    assert read_model(bench.state.candidate(1) / "worker_result.json", WorkerResult) == candidate.result
    assert candidate.by.startswith("python")
    assert not bench.state.work(1).exists()
    assert Footprint.of(bench.top) == before


def test_the_difference_counts_without_a_result_and_after_a_failure(bench: Bench) -> None:
    candidate = bench.run("change(); sys.exit(3)")
    assert (candidate.end, candidate.result) == ("proposed", None)
    assert candidate.problems == ("the worker exited with status 3",)


@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("result()", "unchanged"),
        ("KERNEL.write_text(KERNEL.read_text()); os.utime(KERNEL)", "unchanged"),
        ("change(); result(decision='REVERT')", "withdrawn"),
        ("sys.exit(1)", "failed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "failed"),
    ],
)
def test_the_ends_of_a_worker(bench: Bench, program: str, end: str) -> None:
    candidate = bench.run(program)
    assert (candidate.end, candidate.commit, candidate.tree) == (end, None, None)


def test_a_worker_that_fails_is_started_again_on_a_fresh_checkout(bench: Bench) -> None:
    program = """
    assert KERNEL.read_text() == "STAGES = 1\\n", "the checkout is not fresh"
    if sys.argv[1] == "1":
        pathlib.Path(".git/left").write_text("")
        sys.exit("not yet")
    assert not pathlib.Path(".git/left").exists()
    change()
    """
    candidate = bench.run(program, "{attempt}", attempts=2)
    assert (candidate.end, candidate.attempts) == ("proposed", 2)
    assert candidate.problems == ("the worker exited with status 1",)
    assert "not yet" in bench.log("stderr", attempt=1)


def test_attempts_share_the_time(bench: Bench) -> None:
    candidate = bench.run("time.sleep(60)", timeout_s=1.0, attempts=5)
    assert (candidate.end, candidate.attempts) == ("failed", 1)
    assert "did not finish within its deadline" in candidate.problems[0]
    assert candidate.wall_s < 30


def test_the_prompt_and_the_values_of_the_command_line(bench: Bench) -> None:
    program = """
    prompt = sys.stdin.read()
    assert pathlib.Path(sys.argv[1]).read_text() == "make it faster\\n"
    assert pathlib.Path(sys.argv[2]) == RESULT
    assert pathlib.Path(sys.argv[3]) == pathlib.Path.cwd()
    print(repr(prompt), sys.argv[4:])
    """
    keys = ["{prompt}", "{result}", "{worktree}", "{iteration}-{candidate}", "{kernel}", '{{a}} {"b": 1}']
    candidate = bench.run(program, *keys)
    assert candidate.end == "unchanged", bench.log("stderr")
    assert bench.log() == "'make it faster\\n' ['1-1', 'kernels/k.py', '{a} {\"b\": 1}']\n"
    bench.run(program, *keys, prompt="file")
    assert bench.log().startswith("''")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"command": ("sh", "{state_root}")}, r"unknown key \{state_root\}; known are \{iteration\}"),
        ({"command": ("no-such-program",)}, "which does not exist or cannot be executed"),
        ({"command": ("",)}, "is empty"),
        ({"command": ("sh",), "readable": ("nowhere",)}, "readable names 'nowhere'"),
        ({"command": ("sh",), "writable": (".",)}, "holds or lies in"),
        ({"command": ("sh",), "writable": ("/",)}, "holds or lies in"),
        ({"command": ("sh",), "writable": (".git/objects",)}, "holds or lies in"),
        ({"command": ("sh",), "writable": (".nvfp4/loop",)}, "holds or lies in"),
    ],
)
def test_a_command_that_cannot_be_used_is_refused_at_the_start(bench: Bench, section: dict, message: str) -> None:
    bench.state.root.mkdir(parents=True)
    with pytest.raises(ConfigError, match=message):
        CommandWorker(WorkerSection.model_validate(section), places=bench.places(), root=bench.top, most_bytes=1)


def test_git_works_in_the_worktree_and_the_objects_are_the_only_part_of_the_user_s_repository(bench: Bench) -> None:
    user_git(bench.top, "config", "remote.origin.url", "https://user:token@example.org")
    program = f"""
    for command in ("log --format=%s", "diff --stat", "status --porcelain"):
        print(subprocess.run(["git", *command.split()], capture_output=True, text=True, check=True).stdout)
    attempt(lambda: pathlib.Path({str(bench.top / ".git/config")!r}).read_text())
    attempt(lambda: pathlib.Path({str(bench.top / KERNEL)!r}).read_text())
    change()
    print(subprocess.run(["git", "diff", "--stat"], capture_output=True, text=True, check=True).stdout)
    """
    candidate = bench.run(program)
    assert candidate.end == "proposed", bench.log("stderr")
    assert bench.log().count("refused PermissionError") == 2
    assert "first" in bench.log()
    assert "1 insertion(+), 1 deletion(-)" in bench.log()


def test_configured_variables_pass_and_no_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_KEY", "given")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not given")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/the user's")
    bench.run("print(json.dumps(dict(os.environ)))", environment=("AGENT_KEY", "XDG_CONFIG_HOME", "MISSING"))
    import json

    seen = json.loads(bench.log())
    assert seen["AGENT_KEY"] == "given"
    assert seen["XDG_CONFIG_HOME"] == "/the user's"
    assert seen["HOME"] == str(bench.state.work(1) / "box" / "home")
    assert "not given" not in bench.log()
    assert not [name for name in seen if name.startswith("NVFP4_") and "LOOP" not in name and "INSIDE" not in name]


def test_a_program_beside_the_user_s_files_opens_none_of_them(bench: Bench) -> None:
    script = bench.top / "agent.sh"
    script.write_text(
        f"#!/bin/sh\ncat .git/HEAD\ncat '{bench.top}/conftest.py' '{bench.top}/.git/config'\nno-such-program\n"
    )
    script.chmod(0o755)
    section = WorkerSection(command=("./agent.sh",), attempts=1)
    task = bench.task()
    task.folder.mkdir(parents=True)
    worker = CommandWorker(section, places=bench.places(), root=bench.top, most_bytes=1 << 30)
    candidate = worker.run(task)
    assert len(bench.log()) == 41, "only the id of the commit was printed"
    assert bench.log("stderr").count("Permission denied") == 2
    assert "`readable` gives the sandbox programs" in candidate.problems[0]


def test_progress_is_copied_while_the_worker_runs(bench: Bench) -> None:
    program = """
    progress = pathlib.Path(os.environ["NVFP4_LOOP_PROGRESS"])
    progress.write_text(json.dumps({"best_time_us": 5.5, "status": "running"}))
    until = time.monotonic() + 30
    while time.monotonic() < until and not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    print(pathlib.Path(sys.argv[1]).exists())
    """
    copy = bench.state.candidate(1) / "worker_progress.json"
    bench.run(program, str(copy), sandbox="off")
    assert bench.log() == "True\n"
    seen = read_model(copy, WorkerProgress)
    assert seen is not None
    assert seen.best_time_us == 5.5


def test_a_stopped_loop_ends_the_worker_and_leaves_no_workplace(bench: Bench) -> None:
    stop = threading.Event()
    task = bench.task()
    task.folder.mkdir(parents=True)
    worker = bench.worker("print('ready'); sys.stdout.flush(); time.sleep(60)")
    log = task.folder / "worker_attempt_1.stdout.log"

    def watch() -> None:
        while not (log.exists() and log.read_text()):
            threading.Event().wait(0.02)
        stop.set()

    thread = threading.Thread(target=watch)
    thread.start()
    with pytest.raises(StoppedError), stopped_by(stop):
        worker.run(task)
    thread.join()
    assert not bench.state.work(1).exists()


def test_what_an_interrupted_run_left_is_removed_first(bench: Bench) -> None:
    left = bench.state.tree(1) / "kernels"
    left.mkdir(parents=True)
    (left / "k.py").write_text("half done")
    candidate = bench.run("assert KERNEL.read_text() == 'STAGES = 1\\n'")
    assert candidate.end == "unchanged"


def test_the_same_change_is_the_same_tree_and_source(bench: Bench) -> None:
    first, second = (bench.run("change()", number=number) for number in (1, 2))
    assert first.tree == second.tree
    assert first.commit != second.commit
    assert first.source_sha256 == second.source_sha256
    third = bench.run("change('STAGES = 2  # the same\\n')", number=3)
    assert third.tree != first.tree
    assert third.source_sha256 == first.source_sha256
    other = bench.run("change('STAGES = 4\\n')", number=4)
    assert other.source_sha256 != first.source_sha256


def test_further_files_may_change_if_the_policy_says_so(bench: Bench) -> None:
    program = "change(); pathlib.Path('kernels/other.py').write_text('OTHER = 2\\n')"
    assert bench.run(program).violations == ("kernels/other.py is changed",)
    candidate = bench.run(program, may_change=("kernels/oth*.py",))
    assert candidate.files == (KERNEL, "kernels/other.py")
    removed = bench.run("change(); os.unlink('kernels/other.py')", may_change=("kernels/oth*.py",))
    assert removed.end == "proposed"
    assert "kernels/other.py" not in bench.repository.files(removed.commit or "")


@pytest.mark.slow
def test_workers_side_by_side_make_what_they_make_one_after_the_other(bench: Bench) -> None:
    program = "change(f'STAGES = 7{sys.argv[1]}\\n'); time.sleep(0.2)"
    worker = bench.worker(program, "{candidate}")
    tasks = [bench.task(number) for number in range(1, 5)]
    for task in tasks:
        task.folder.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(worker.run, tasks))
    alone = [worker.run(task) for task in tasks]
    assert [(each.commit, each.end) for each in together] == [(each.commit, "proposed") for each in alone]


def test_a_full_disk_is_told_from_a_failure_of_git(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "bin" / "git"
    full.parent.mkdir()
    full.write_text("#!/bin/sh\necho 'error: unable to write file x: No space left on device' >&2; exit 128\n")
    full.chmod(0o755)
    monkeypatch.setenv("PATH", f"{full.parent}:/usr/bin:/bin")
    with pytest.raises(OSError, match="No space left on device") as caught:
        bench.repository.incumbent()
    assert caught.value.errno == errno.ENOSPC

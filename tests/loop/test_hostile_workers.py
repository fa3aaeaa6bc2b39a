"""Workers that want a verdict, and not a faster kernel: each is stopped for its own reason, and nothing outlives it.

A program prints ``BREACH`` where it reaches what it must not. The sandbox of this machine is on; where a test turns it
off, it holds what the harness itself guarantees.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.process_tree import processes
from pytest_nvfp4.toolchain.sandbox import Sandbox

from .repositories import KERNEL, Footprint, user_git
from .workers import Bench

MARK = f"nvfp4-loop-test-straggler-{os.getpid()}"
"""A word in the command lines of processes that must not outlive a worker."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return Bench(tmp_path / "user")


@pytest.fixture
def complete() -> None:
    """Skip where the sandbox is not complete: what it refuses is refused by the kernel of the system."""
    if missing := Sandbox.probe().missing:
        pytest.skip(f"no {', '.join(missing)} here")


def stragglers() -> list[int]:
    """Return processes with the mark in their command line."""
    found = []
    for entry in processes():
        try:
            if entry.state not in "ZX" and MARK.encode() in Path(f"/proc/{entry.pid}/cmdline").read_bytes():
                found.append(entry.pid)
        except OSError:
            continue
    return found


def no_stragglers() -> bool:
    """Wait until there are none; the system removes what was killed a moment later."""
    until = time.monotonic() + 10
    while stragglers() and time.monotonic() < until:
        time.sleep(0.02)
    return not stragglers()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("'[' * 15000", "is nested deeper"),
        ("'[' + '1,' * 100000 + '1]'", "contains more than"),
        ("'x' * (2 << 20)", "has 2097152 bytes, and at most 1048576 are read"),
        ("json.dumps({'iteration': 1})", "lacks kernel_path"),
        ("'{\"iteration\": NaN}'", "NaN"),
        ("json.dumps(dict(iteration=2, kernel_path='k', decision='KEEP'))", "belongs to iteration 2, not 1"),
        ("json.dumps(dict(iteration=1, kernel_path='k', decision='PROMOTE'))", "decision = 'PROMOTE'"),
        ("json.dumps(dict(iteration=1, kernel_path='k', decision='KEEP', verdict='faster'))", "unknown field verdict"),
        ("json.dumps(dict(iteration=1, kernel_path='k', decision='KEEP', tokens=-5))", "tokens = -5"),
    ],
)
def test_a_result_that_cannot_be_read_is_a_problem_and_the_difference_counts(
    bench: Bench, content: str, problem: str
) -> None:
    candidate = bench.run(f"change(); RESULT.write_text({content})")
    assert (candidate.end, candidate.result) == ("proposed", None)
    assert len(candidate.problems) == 1
    assert problem in candidate.problems[0]
    assert not (bench.state.candidate(1) / "worker_result.json").exists()


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        ("RESULT.symlink_to('/etc/passwd')", "is a link, and not a file"),
        ("os.mkfifo(RESULT)", "is a pipe, and not a file"),
        ("RESULT.mkdir()", "is a folder, and not a file"),
        ("result(); os.link(RESULT, RESULT.with_name('other'))", "is a hard link"),
        ("RESULT.touch(); os.truncate(RESULT, 1 << 30)", "has 1073741824 bytes"),
    ],
)
def test_a_result_that_is_no_file_is_a_problem(bench: Bench, act: str, problem: str) -> None:
    candidate = bench.run(f"change(); {act}")
    assert candidate.end == "proposed"
    assert problem in candidate.problems[0]


def test_a_lie_is_only_a_claim(bench: Bench) -> None:
    candidate = bench.run(
        "change(); result(metric_name='gmean_us', metric_value=0.001, tests_passed=True, summary='\\x1b]0;x')"
    )
    assert candidate.end == "proposed"
    assert candidate.result is not None
    assert candidate.result.metric_value == 0.001, "it is recorded as a claim, and nothing reads it as a time"


FORBIDDEN = {
    "tests": ("pathlib.Path('tests/test_k.py').write_text('')", "tests/test_k.py is changed"),
    "snapshots": ("pathlib.Path('snapshots/k.txt').write_text('')", "snapshots/k.txt is changed"),
    "settings": ("pathlib.Path('pyproject.toml').write_text('')", "pyproject.toml is changed"),
    "conftest": ("pathlib.Path('conftest.py').write_text('import os')", "conftest.py is changed"),
    "new conftest": ("pathlib.Path('kernels/conftest.py').write_text('')", "kernels/conftest.py is a file that"),
    "ignore rules": (
        "pathlib.Path('.gitignore').write_text('*'); pathlib.Path('x').write_text('')",
        ".gitignore is changed",
    ),
    "new ignore rules": (
        "pathlib.Path('kernels/.gitignore').write_text('*'); pathlib.Path('kernels/x').write_text('')",
        "kernels/x is a file that",
    ),
    "own exclude": (
        "pathlib.Path('.git/info').mkdir(exist_ok=True); pathlib.Path('.git/info/exclude').write_text('*');"
        "pathlib.Path('x').write_text('')",
        "x is a file that",
    ),
    "hidden by git": (
        "subprocess.run(['git', 'update-index', '--assume-unchanged', 'conftest.py'], check=True);"
        "pathlib.Path('conftest.py').write_text('x')",
        "conftest.py is changed",
    ),
    "committed": (
        "pathlib.Path('conftest.py').write_text('x');"
        "subprocess.run(['git', '-c', 'user.name=x', '-c', 'user.email=x', 'commit', '-qam', 'x'], check=True)",
        "conftest.py is changed",
    ),
    "old stat": (
        "s = os.stat('conftest.py'); pathlib.Path('tests/test_k.py').write_text('def test_k():\\n    assert 1   \\n');"
        "os.utime('tests/test_k.py', ns=(s.st_atime_ns, s.st_mtime_ns))",
        "tests/test_k.py is changed",
    ),
    "everything removed": ("subprocess.run('rm -rf .git * .gitignore', shell=True)", "pyproject.toml is gone"),
    "kernel a link": ("KERNEL.unlink(); KERNEL.symlink_to('/etc/passwd')", f"{KERNEL} is a link"),
    "kernel a pipe": ("KERNEL.unlink(); os.mkfifo(KERNEL)", f"{KERNEL} is a pipe"),
    "kernel a hard link": ("KERNEL.unlink(); os.link('conftest.py', KERNEL)", f"{KERNEL} is a hard link"),
    "kernel of 2 GB": ("os.truncate(KERNEL, 2 << 30)", f"{KERNEL} has 2147483648 bytes"),
    "folders without end": ("[(os.mkdir('d'), os.chdir('d')) for _ in range(300)]", "deeper than 64 levels"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_changes_are_violations_beside_a_good_kernel(bench: Bench, name: str) -> None:
    before = Footprint.of(bench.top)
    act, message = FORBIDDEN[name]
    candidate = bench.run(f"change(); result()\n{act}")
    assert (candidate.end, candidate.commit) == ("violation", None), bench.log("stderr")
    assert any(message in each for each in candidate.violations), candidate.violations
    assert Footprint.of(bench.top) == before
    assert not bench.state.work(1).exists()


def test_a_name_that_git_refuses_is_a_violation(bench: Bench) -> None:
    program = "change(); pathlib.Path('kernels/GIT~1').mkdir(); pathlib.Path('kernels/GIT~1/x.txt').write_text('')"
    candidate = bench.run(program, may_change=("kernels/*/*.txt",))
    assert candidate.violations == ("kernels/GIT~1/x.txt has a name that git refuses",)


def test_caches_and_ignored_files_are_no_violations_and_no_part_of_a_candidate(bench: Bench) -> None:
    candidate = bench.run("""
    change()
    for name in ("build/x.o", "a.log", "kernels/__pycache__/k.pyc", ".pytest_cache/v/x", ".nvfp4/y"):
        pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(name).write_text("")
    os.mkfifo("build/pipe")
    os.symlink("/etc", "build/link")
    """)
    assert (candidate.end, candidate.files) == ("proposed", (KERNEL,)), candidate.violations
    assert set(bench.repository.files(candidate.commit or "")) == set(bench.repository.files("main"))


def test_what_git_does_in_the_worktree_reaches_the_user_s_repository_nowhere(bench: Bench) -> None:
    before = Footprint.of(bench.top)
    candidate = bench.run("""
    change()
    for command in ("config user.name x", "config user.email x@x", "commit -qam mine", "branch -f main HEAD",
                    "tag v1", "update-ref refs/heads/nvfp4-loop/loop HEAD", "config core.hooksPath /tmp",
                    "stash list", "gc --quiet --prune=now"):
        subprocess.run(["git", *command.split()], check=True)
    pathlib.Path(".git/hooks").mkdir(exist_ok=True)
    pathlib.Path(".git/hooks/post-checkout").write_text("#!/bin/sh\\ntouch /tmp/x\\n")
    """)
    assert candidate.end == "proposed", bench.log("stderr")
    assert Footprint.of(bench.top) == before
    assert bench.repository.incumbent() == user_git(bench.top, "rev-parse", "HEAD")


def test_a_replaced_repository_of_the_worktree_is_never_read(bench: Bench) -> None:
    candidate = bench.run(f"""
    change()
    subprocess.run(["rm", "-rf", ".git"], check=True)
    pathlib.Path(".git").write_text("gitdir: {bench.top}/.git\\n")
    """)
    assert candidate.end == "proposed"
    evil = bench.run("""
    change("STAGES = 3\\n")
    pathlib.Path(".gitattributes").write_text("* filter=evil\\n")
    for key, value in {"filter.evil.clean": "touch /tmp/evil", "core.fsmonitor": "touch /tmp/evil",
                       "core.sshCommand": "x", "core.worktree": "/"}.items():
        subprocess.run(["git", "config", key, value], check=True)
    """, number=2)  # fmt: skip
    assert evil.violations == (".gitattributes is a file that was not there",)
    assert not Path("/tmp/evil").exists()


@pytest.mark.usefixtures("complete")
def test_the_sandbox_keeps_a_worker_from_everything_of_the_user_s(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    key.write_text("the key")
    monkeypatch.setenv("TOKEN_OF_THE_USER", "the token")
    for name in ("state.json", "candidates/0001/verdict.json", "candidates/0007/candidate.json"):
        place = bench.state.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("{}")
    before = Footprint.of(bench.top)
    program = f"""
    top, state = pathlib.Path({str(bench.top)!r}), pathlib.Path({str(bench.state.root)!r})
    git = top / ".git"
    attempt(lambda: pathlib.Path({str(key)!r}).read_text())
    attempt(lambda: os.environ["TOKEN_OF_THE_USER"])
    attempt(lambda: pathlib.Path("/proc/{os.getpid()}/environ").read_bytes())
    attempt(lambda: os.kill({os.getpid()}, 0))
    attempt(lambda: os.kill(-1, signal.SIGKILL) if len(os.listdir("/proc")) > 100000 else os.kill({os.getppid()}, 0))
    for place in (top / "conftest.py", top / "x", git / "config", git / "HEAD", git / "hooks/post-commit",
                  git / "refs/heads/main", git / "objects/info/alternates", git / "objects/xx", git / "index",
                  state / "state.json", state / "candidates/0001/verdict.json", state / "candidates/0001/new",
                  state / "control.json", state / "candidates/0007/candidate.json", pathlib.Path("../prompt.txt"),
                  pathlib.Path("../parent"), pathlib.Path("../new"), pathlib.Path("../../0002")):
        attempt(lambda: place.write_text("x"))
    attempt(lambda: (state / "state.json").read_text())
    attempt(lambda: (git / "config").read_text())
    attempt(lambda: os.rename("../tree", "../tree2"))
    attempt(lambda: os.rename("../outbox", "../outbox2"))
    attempt(lambda: os.symlink("/etc", "../link"))
    attempt(lambda: os.link(top / "conftest.py", "linked"))
    attempt(lambda: os.link({str(key)!r}, "linked"))
    attempt(lambda: os.chmod(top / "conftest.py", 0))
    attempt(lambda: os.utime(top / "conftest.py", (1, 1)))
    attempt(lambda: __import__("socket").create_connection(("127.0.0.1", 22), 1))
    attempt(lambda: __import__("socket").socket(__import__("socket").AF_UNIX))
    change()
    """
    candidate = bench.run(program)
    assert "BREACH" not in bench.log()
    assert bench.log().count("refused") == 34, bench.log()
    assert candidate.end == "proposed", bench.log("stderr")
    assert Footprint.of(bench.top) == before


def test_without_the_sandbox_the_same_acts_succeed(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the key")
    program = f"""
    attempt(lambda: pathlib.Path({str(tmp_path / "key")!r}).read_text())
    attempt(lambda: pathlib.Path("../new").write_text("x"))
    """
    bench.run(program, sandbox="off")
    assert bench.log().count("BREACH") == 2


ENDLESS = {
    "asleep": "time.sleep(1000)",
    "ignores signals": "[signal.signal(n, signal.SIG_IGN) for n in (15, 2, 1, 3)]; time.sleep(1000)",
    "busy": "while True: pass",
    "closed streams": "os.close(0); os.close(1); os.close(2); time.sleep(1000)",
    "forks": "[os.fork() for _ in range(6)]; time.sleep(1000)",
    "forks in a new session": f"""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("python3", ["python3", "-c", "import time; time.sleep(1000)", {MARK!r}])
        time.sleep(1000)""",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_worker_that_never_ends_is_ended_with_all_that_it_started(bench: Bench, name: str) -> None:
    candidate = bench.run(ENDLESS[name], timeout_s=1.5)
    assert "did not finish within its deadline" in candidate.problems[0]
    assert candidate.wall_s < 60
    assert no_stragglers()


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_a_loop_that_is_killed_takes_its_worker_along(bench: Bench, sandbox: str) -> None:
    harness = f"""
import sys
from pathlib import Path
from tests.loop.workers import Bench
bench = object.__new__(Bench)
bench.top = Path({str(bench.top)!r})
bench.open()
bench.run('open("ready", "w"); time.sleep(1000)', {MARK!r}, sandbox={sandbox!r})
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", harness], cwd=root) as loop:
        try:
            until = time.monotonic() + 60
            while not (bench.state.tree(1) / "ready").exists() and time.monotonic() < until:
                time.sleep(0.02)
            assert len(stragglers()) > 1, "the worker runs"
        finally:
            loop.kill()
    assert no_stragglers()
    bench.repository.clean()
    assert not bench.state.work(1).exists()


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_daemons_end_with_the_worker_before_its_files_are_read(bench: Bench, sandbox: str) -> None:
    program = f"""
    daemon = '''
import os, time
if os.fork() or os.setsid() or os.fork():
    os._exit(0)
os.environ.clear()
while True:
    open("kernels/k.py", "w").write("STAGES = 666\\\\n")
'''
    subprocess.run([sys.executable, "-c", daemon, {MARK!r}], check=True)
    while "666" not in KERNEL.read_text():
        time.sleep(0.01)
    change()
    """
    candidate = bench.run(program, sandbox=sandbox)
    assert candidate.end in ("proposed", "unchanged"), bench.log("stderr")
    assert no_stragglers()
    assert not bench.state.work(1).exists()


def test_a_flood_of_output_is_bounded_and_keeps_both_ends(bench: Bench) -> None:
    program = """
    print("the first line")
    sys.stdout.flush()
    for _ in range(300):
        os.write(1, b"x" * 100_000 + b"\\n")
    print("the last line")
    """
    bench.run(program, output_mb=1.0)
    path = bench.state.candidate(1) / "worker_attempt_1.stdout.log"
    assert path.stat().st_size < 1_200_000
    text = path.read_text()
    assert text.startswith("the first line\n")
    assert text.endswith("the last line\n")
    assert "bytes dropped" in text


def test_a_worker_that_fills_the_disk_is_ended(bench: Bench) -> None:
    program = """
    for number in range(1000):
        pathlib.Path(f"build/{number}").parent.mkdir(exist_ok=True)
        pathlib.Path(f"build/{number}").write_bytes(os.urandom(1 << 20))
        time.sleep(0.02)
    """
    candidate = bench.run(program, most_bytes=5 << 20)
    assert candidate.end == "failed"
    assert "its files have grown by" in candidate.problems[0]


def test_a_hundred_identical_candidates_are_one_tree(bench: Bench) -> None:
    made = {bench.run("change()", number=number).tree for number in range(1, 6)}
    assert len(made) == 1


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getppid(), signal.SIGKILL)", "os.killpg(0, signal.SIGKILL)", "os.kill(-1, 9)"]
)
def test_a_worker_that_kills_what_it_reaches_ends_itself(bench: Bench, ending: str) -> None:
    candidate = bench.run(f"change()\nattempt(lambda: {ending})")
    assert candidate.end == "proposed"


def test_without_a_sandbox_the_harness_reads_only_the_folders_that_it_made(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "worker_result.json").write_text('{"iteration": 1, "kernel_path": "k", "decision": "REVERT"}')
    program = f"""
    change()
    os.rename("../outbox", "../gone")
    os.symlink({str(other)!r}, "../outbox")
    here = os.getcwd()
    os.rename(here, here + "-moved")
    os.symlink("/etc", here)
    """
    candidate = bench.run(program, sandbox="off")
    assert (candidate.end, candidate.result) == ("proposed", None), (bench.log("stderr"), candidate)
    assert bench.kernel(candidate) == "STAGES = 2\n"
    assert not bench.state.work(1).exists()
    assert (other / "worker_result.json").exists()


def test_what_is_lost_without_the_sandbox_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_nvfp4.isolation.wall import Part

    assert "the sandbox is off" in bench.worker("", sandbox="off").command.lost()[0]
    monkeypatch.setattr(Sandbox, "probe", classmethod(lambda cls: cls(0, {Part.LANDLOCK: "no such call"})))
    assert "no landlock (no such call)" in bench.worker("").command.lost()[0]
    assert any("network" in line for line in bench.worker("", network=True).command.lost())
    from pytest_nvfp4.loop.configuration.errors import ConfigError

    with pytest.raises(ConfigError, match="the sandbox is required"):
        bench.worker("", sandbox="require")

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import Outcome, run
from tests.isolation.supervised import supervised
from tests.waiting import LONGEST_S, alive, far_enough, gone, noted


def execute(tmp_path: Path, source: str, *, below: str = "", **options: object) -> Outcome:
    script = tmp_path / "script.py"
    script.write_text(below + textwrap.dedent(source))
    options = {"deadline_s": LONGEST_S, **options}
    return run([sys.executable, "-B", str(script)], cwd=tmp_path, **options)  # type: ignore[arg-type]


def said(outcome: Outcome) -> str:
    return outcome.stdout.text


def test_result_comes_over_its_own_pipe_and_output_is_kept(tmp_path: Path) -> None:
    outcome = execute(
        tmp_path,
        """
        import os, sys
        print("out"); print("err", file=sys.stderr)
        os.write(int(os.environ["NVFP4_RESULT_FD"]), b"x" * 300_000)
        """,
    )
    assert (outcome.returncode, outcome.stdout.text, outcome.stderr.text) == (0, "out\n", "err\n")
    assert outcome.result == b"x" * 300_000
    assert outcome.describe_end() == "exited with status 0"


def test_exit_without_a_result_has_none(tmp_path: Path) -> None:
    outcome = execute(tmp_path, "import os; os._exit(0)")
    assert outcome.returncode == 0
    assert outcome.result is None


def test_a_crash_is_named_by_its_signal(tmp_path: Path) -> None:
    outcome = execute(tmp_path, "import ctypes; ctypes.string_at(0)")
    assert outcome.returncode == -signal.SIGSEGV
    assert "SIGSEGV" in outcome.describe_end()


def test_a_hang_ends_at_the_deadline_with_its_children(tmp_path: Path) -> None:
    source = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print(child.pid, away.pid, flush=True)
        time.sleep(600)
        """
    outcome = far_enough(lambda deadline_s: execute(tmp_path, source, deadline_s=deadline_s), said)
    assert outcome.timed_out
    assert outcome.wall_s < 600
    assert "deadline" in outcome.describe_end()
    child, away = map(int, outcome.stdout.text.split())
    assert gone(child)
    assert gone(away)


def test_children_left_behind_do_not_hold_up_the_result(tmp_path: Path) -> None:
    outcome = execute(
        tmp_path,
        """
        import os, subprocess, sys
        away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
                                close_fds=False, pass_fds=(int(os.environ["NVFP4_RESULT_FD"]),))
        print(away.pid, flush=True)
        os.write(int(os.environ["NVFP4_RESULT_FD"]), b"done")
        """,
        below=supervised(),
    )
    assert outcome.result == b"done"
    assert not outcome.timed_out
    assert outcome.wall_s < LONGEST_S
    assert gone(int(outcome.stdout.text))


def test_a_flood_is_read_and_bounded(tmp_path: Path) -> None:
    outcome = execute(
        tmp_path,
        """
        import sys
        print("first")
        for _ in range(2000):
            sys.stdout.write("x" * 10_000)
        print("last")
        """,
        output_bytes=10_000,
    )
    text = outcome.stdout.text
    assert text.startswith("first")
    assert text.endswith("last\n")
    assert "bytes dropped" in text
    assert len(text) < 100_000


def test_a_result_that_is_too_large_is_refused(tmp_path: Path) -> None:
    outcome = execute(
        tmp_path,
        'import os; [os.write(int(os.environ["NVFP4_RESULT_FD"]), b"x" * 1000) for _ in range(10)]',
        result_bytes=5000,
    )
    assert outcome.result is None
    assert outcome.result_overflow


def test_secrets_do_not_reach_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODAL_TOKEN_SECRET", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SOMETHING_ELSE", "CUTE_DSL_ARCH"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    outcome = execute(tmp_path, "import os; print(os.environ)", environ={"CUTE_DSL_DRYRUN": "given"})
    assert "planted" not in outcome.stdout.text
    assert "given" in outcome.stdout.text
    assert "LC_ALL" in outcome.stdout.text


def test_limits_bind_memory_and_file_size(tmp_path: Path) -> None:
    outcome = execute(
        tmp_path,
        """
        import os
        try:
            bytearray(1 << 30)
        except MemoryError:
            print("memory bounded")
        import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            open("big", "wb").write(bytes(3 << 20))
        except OSError:
            print("file bounded")
        """,
        below=supervised(memory_bytes=512 << 20, file_bytes=1 << 20),
    )
    assert outcome.stdout.text.split("\n")[:2] == ["memory bounded", "file bounded"], outcome


def test_without_limits_the_same_allocations_succeed(tmp_path: Path) -> None:
    outcome = execute(tmp_path, 'bytearray(1 << 30); open("big", "wb").write(bytes(3 << 20)); print("free")')
    assert outcome.stdout.text == "free\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    script = tmp_path / "child.py"
    script.write_text(
        supervised() + "import time\nprint(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from pytest_nvfp4.isolation import run\n"
            "run([sys.executable, sys.argv[1], sys.argv[2]], cwd=Path(sys.argv[3]), deadline_s=600)",
            str(script),
            str(root),
            str(tmp_path),
        ],
        cwd=root,
        stderr=subprocess.DEVNULL,
    )
    pid = noted(tmp_path / "pid")
    assert alive(pid)
    os.kill(parent.pid, number)
    parent.wait(timeout=LONGEST_S)
    assert gone(pid)


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run(["/nonexistent/program"], cwd=tmp_path, deadline_s=1)


@pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")
@pytest.mark.parametrize("below", [True, False], ids=["supervised", "alone"])
def test_what_hides_is_ended_with_a_worker_that_hangs(tmp_path: Path, below: bool) -> None:
    text = """
        import subprocess, time
        away = subprocess.Popen(
            ["env", "-i", "setsid", "--fork", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        print(away.stdout.readline(), flush=True)
        away.wait()
        time.sleep(600)
        """
    outcome = far_enough(
        lambda deadline_s: execute(tmp_path, text, below=supervised() if below else "", deadline_s=deadline_s), said
    )
    hidden = int(outcome.stdout.text)
    assert outcome.timed_out
    try:
        assert gone(hidden) if below else alive(hidden)
    finally:
        if alive(hidden):
            os.kill(hidden, signal.SIGKILL)

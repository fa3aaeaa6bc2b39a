"""Whatever a kernel starts has ended with it, however it forks, and so it has when whoever started it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.wall import NAMESPACES, Part, Wall
from tests.isolation.supervised import ROOT
from tests.waiting import LONGEST_S, far_enough, until

from .behind import behind, is_root, other_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no wall elsewhere")

HIDES = {
    "a session of its own": "subprocess.Popen([sys.executable, '-c', wait], start_new_session=True)",
    "twice forked, without environment": (
        "subprocess.Popen(['env', '-i', 'setsid', '--fork', sys.executable, '-c', wait])"
    ),
    "a copied environment": (
        "subprocess.Popen(['setsid', '--fork', sys.executable, '-c', wait], env={**os.environ, 'NVFP4_PARENT_PID': '1',"
        " 'NVFP4_PROCESS_TOKEN': '0' * 32})"
    ),
    "ignored signals": (
        "subprocess.Popen(['setsid', '--fork', 'sh', '-c', 'trap \"\" 1 2 3 15; exec ' + sys.executable + ' -c \"$0\"',"
        " wait])"
    ),
    "a chain that forks on": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.utime(beat)\n"
        "        time.sleep(0.001)"
    ),
    "a bomb": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        try: os.fork()\n"
        "        except OSError: pass\n"
        "        os.utime(beat)\n"
        "        time.sleep(0.01)"
    ),
}
"""Descendants that set the time of a file as long as they live."""
BEATS = """
beat = os.path.abspath("beat")
wait = f"import os, time\\nwhile True:\\n    os.utime({beat!r}); time.sleep(0.01)"
open(beat, "w").close()
"""
UNTIL_IT_BEATS = "\nwas = os.stat(beat).st_mtime_ns\nwhile os.stat(beat).st_mtime_ns == was: time.sleep(0.01)\n"
WAYS = {"in a namespace": (), "below a subreaper": (Part.PROCESSES, Part.MOUNTS)}


def silent(folder: Path) -> bool:
    """Whether nothing sets the time of the file any more."""

    def still() -> bool:
        was = (folder / "beat").stat().st_mtime_ns
        time.sleep(0.2)
        return (folder / "beat").stat().st_mtime_ns == was

    return until(still, within_s=20)


def job(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if is_root() and folder != Path("/tmp"):
            folder.chmod(0o755)
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hides", HIDES)
def test_what_hides_ends_with_it(hides: str, way: str, tmp_path: Path) -> None:
    folder = job(tmp_path)
    source = f"{BEATS}{HIDES[hides]}\n{UNTIL_IT_BEATS}os._exit(7)"
    outcome = behind(Wall(folder=str(folder), without=WAYS[way], processes=60), source, *"ab0", user=other_user())
    assert outcome.returncode == 7, outcome.stderr.text
    assert silent(folder)


@pytest.mark.parametrize("way", WAYS)
def test_what_hides_ends_at_the_deadline(way: str, tmp_path: Path) -> None:
    folder = job(tmp_path)
    source = f"{BEATS}{HIDES['a bomb']}\n{UNTIL_IT_BEATS}print('far', flush=True)\ntime.sleep(600)"
    wall = Wall(folder=str(folder), without=WAYS[way], processes=60)
    run: Callable[[float], object] = lambda deadline_s: behind(  # noqa: E731
        wall, source, *"ab0", user=other_user(), deadline_s=deadline_s
    )
    outcome = far_enough(run, lambda it: it.stdout.text)  # type: ignore[attr-defined]
    assert outcome.timed_out  # type: ignore[attr-defined]
    assert silent(folder)


STARTS = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from pytest_nvfp4.isolation.wall import Part, Wall, fork_behind
import os, signal
wall = Wall(folder=sys.argv[1], without=tuple(map(Part, sys.argv[3:])))
pid = fork_behind(wall)
if pid == 0:
    exec(sys.argv[2])
status = os.waitpid(pid, 0)[1]
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_what_hides_ends_with_whoever_started_it(way: str, number: signal.Signals, tmp_path: Path) -> None:
    folder = job(tmp_path)
    source = f"import subprocess, time\nos.chdir({str(folder)!r})\n{BEATS}{HIDES['twice forked, without environment']}"
    source += f"\n{UNTIL_IT_BEATS}print('far', flush=True)\ntime.sleep(600)"
    command = [sys.executable, "-c", STARTS, str(folder), source, *WAYS[way]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "far\n"
        process.send_signal(number)
    assert silent(folder)


ENDS = {
    "a status": ("os._exit(9)", 9),
    "an exception": ("raise SystemExit(4)", 4),
    "a crash": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    "an abort": ("os.abort()", -signal.SIGABRT),
    "a signal to itself": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "a signal to its number": (
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(5)); os.write(1, b'far\\n'); signal.pause()",
        5,
    ),
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * bool(WAYS[way])) for way in WAYS])
@pytest.mark.parametrize("end", ENDS)
def test_its_number_ends_as_it_does(end: str, way: str, tmp_path: Path) -> None:
    source, status = ENDS[end]
    # A line is one write, which nothing parts: Python may write a line and its end one after the other.
    starts = STARTS.replace("status = os", r"os.write(1, f'{pid}\n'.encode()); status = os")
    command = [sys.executable, "-c", starts, str(job(tmp_path)), source, *WAYS[way]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if status == 5:
            pid, far = sorted((process.stdout.readline(), process.stdout.readline()))
            assert far == "far\n"
            os.kill(int(pid), signal.SIGUSR1)
        else:
            process.stdout.readline()
        assert int(process.stdout.readline()) == status
        process.wait(LONGEST_S)


def test_a_wall_that_is_required_and_not_complete_is_not_entered(tmp_path: Path) -> None:
    folder = job(tmp_path)
    source = "print('entered', flush=True); os._exit(0)"
    outcome = behind(Wall(folder=str(folder), mode="require"), source, *"ab0")
    assert outcome.returncode in (0, 125)
    assert (outcome.returncode == 125) == ("the sandbox is required and not complete here" in outcome.stderr.text)
    assert (outcome.returncode == 0) == (outcome.stdout.text == "entered\n")


def test_no_descriptor_comes_along(tmp_path: Path) -> None:
    leaking = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leaking, True)
    source = "print(sorted(os.listdir('/proc/self/fd'), key=int)); os._exit(0)"
    command = [
        sys.executable,
        "-c",
        STARTS,
        str(job(tmp_path)),
        source.replace("os._exit", "sys.stdout.flush(); os._exit"),
    ]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, close_fds=False).stdout
    finally:
        os.close(leaking)
    # 0 to 2, and the one that lists.
    assert shown.splitlines()[0] == "['0', '1', '2', '3']"


def test_namespaces_are_left_out_for_a_gpu() -> None:
    assert not set(Wall(folder="/", gpu=True).parts).intersection(NAMESPACES)


@pytest.mark.parametrize("module", ["device.worker", "device.worker.program", "toolchain.worker"])
def test_without_a_wall_nothing_starts_and_what_starts_it_is_said(module: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("print('it ran')")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"pytest_nvfp4.{module}", str(path), str(tmp_path), "sim"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False, env=environ)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("NVFP4_")
    assert "nvfp4 exec" in line

"""Live progress: the line below pytest's own, and lines in a log."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from pytest_nvfp4.plugin.live import StatusLine, progress_line
from tests.waiting import LONGEST_S

from .conftest import Project
from .hostile import CONTRACT

SOON = """import pytest_nvfp4.plugin.live as live
live._POLL_S = live._SHOWN_AFTER_S = live._HEARTBEAT_S = 0.05
"""


def test_a_line_is_removed_where_pytest_goes_on() -> None:
    reader, writer = os.pipe()
    line = StatusLine(writer, lambda: 7)
    line.clear()
    line.show("one")
    line.show("two")
    line.clear()
    line.clear()
    os.close(writer)
    one, two, end = os.read(reader, 1000).decode().split("\x1b[0m")
    os.close(reader)
    assert one == "\n\x1b[2K\x1b[2mone"
    assert two == "\r\x1b[2K\x1b[2mtwo"
    assert end == "\r\x1b[2K\x1b[1A\x1b[8G"


def test_a_narrow_line_keeps_stage_seconds_and_queue() -> None:
    jobs = ["k.py: verify gpumode-0, gpumode-1, gpumode-2: call 3, CTA 37 of 352, 12 s", "k.py: simulate one: 3 s"]
    item = "21 s my_kernel.py::verify[gpumode-0]"
    wide = f"nvfp4: {item}; {jobs[0]}; {jobs[1]}; 4 more jobs"
    assert progress_line(item, jobs, 4, width=None) == progress_line(item, jobs, 4, width=200) == wide
    narrow = progress_line(item, jobs, 4, width=79)
    assert len(narrow) <= 79
    assert narrow.startswith("nvfp4: 21 s verify[gpumode-0]; k.py: ve...")
    assert narrow.endswith("CTA 37 of 352, 12 s; 5 more jobs")
    least = progress_line(item, jobs, 4, width=52)
    assert len(least) <= 52
    assert least.endswith("CTA 37 of 352, 12 s; 5 more jobs")
    assert progress_line("", ["k.py: 3 s"], 0, width=79) == "nvfp4: k.py: 3 s"


def run_until(project: Project, words: str, *args: str, terminal: bool) -> str:
    """Return what a run writes whose kernel waits at its import until ``words`` are written."""
    note = project.path / "shown"
    wait = f"import os, time\nend = time.monotonic() + {LONGEST_S}\n"
    wait += f"while not os.path.exists({str(note)!r}) and time.monotonic() < end:\n    time.sleep(0.05)\n"
    project.file("k.py", wait + "raise SystemExit\n" + CONTRACT)
    project.file("conftest.py", SOON)
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:benchmark", "k.py", *args]
    command += ["--nvfp4-device=none", "--nvfp4-sandbox=off", "-k", "compile"]
    reader, writer = pty.openpty() if terminal else os.pipe()
    environ = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm", "COLUMNS": "150"}
    process = subprocess.Popen(command, cwd=project.path, stdout=writer, stderr=subprocess.STDOUT, env=environ)
    os.close(writer)
    if not words:
        note.touch()
    text, end = "", time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        try:
            chunk = os.read(reader, 1 << 16)
        except OSError:  # how a terminal ends on Linux
            break
        if not chunk:
            break
        text += chunk.decode(errors="replace")
        if words and words in text:
            note.touch()
    assert process.wait() == pytest.ExitCode.TESTS_FAILED, text
    os.close(reader)
    assert "INTERNALERROR" not in text
    return text


@pytest.mark.slow
def test_a_log_gets_a_line_now_and_then(project: Project, workers: tuple[str, ...]) -> None:
    text = run_until(project, "k.py: compile for gpumode-0: import kernel", *workers, terminal=False)
    line = next(line for line in text.splitlines() if "import kernel" in line)
    assert line.startswith("nvfp4: ")
    assert "s k.py::compile[gpumode-0]; k.py: compile for gpumode-0: import kernel, " in line
    assert "\x1b" not in line


@pytest.mark.slow
def test_a_terminal_has_a_line_that_is_gone_at_the_end(project: Project, workers: tuple[str, ...]) -> None:
    text = run_until(project, "k.py: compile for gpumode-0: import kernel", *workers, terminal=True)
    before, _, after = text.rpartition("compile for gpumode-0: import kernel")
    assert "\n\x1b[2K\x1b[2mnvfp4: " in before.replace("\r\n", "\n")
    assert "\r\x1b[2K\x1b[1A\x1b[" in after


@pytest.mark.slow
def test_quiet_runs_and_others_show_nothing(project: Project) -> None:
    assert "import kernel" not in run_until(project, "", "-q", "-q", terminal=False)
    project.file("test_other.py", "import time\n\ndef test_it():\n    time.sleep(0.5)\n")
    assert not re.search(r"^nvfp4: \d", project.run("test_other.py").text, re.MULTILINE)

"""A run that is ended in the middle, in the real process: nothing is lost, and nothing is left running or behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import LONGEST_S, noted, until

from .conftest import Project, is_alive, left_behind
from .sources import ENTRY

SIGNALS = [
    signal.SIGINT,
    *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)),
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX's")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_that_is_ended(project: Project, workers: tuple[str, ...], number: signal.Signals) -> None:
    """Snapshots of finished checks are written, the others stay, and the compile in hand ends with the run.

    After SIGKILL, the next run removes what could not be removed.
    """
    project.settings("", ini='nvfp4_kernels = ["*/k.py"]')
    project.kernel("a/k.py")
    project.record("a/k.py")
    before = project.snapshots()
    project.file(
        "snapshots/gone/k/layouts.txt", "# nvfp4-layouts 1\n# end 0\n"
    )  # an orphan, had the run come to its end
    note = project.path / "note.txt"
    hang = f"import os, time\nopen({str(note)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)\n"
    project.file("b/k.py", hang + ENTRY)
    project.settings(
        '[[tool.pytest_nvfp4.kernel]]\npath = "b/k.py"\nentry = "b/k.py::build"\n', ini='nvfp4_kernels = ["*/k.py"]'
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:benchmark", *workers]
    # Without a sandbox, which would not let the kernel write its note.
    command += ["--nvfp4-device=none", "--nvfp4-sandbox=off", "--snapshot-update", "a", "b", "gone"]
    (project.path / "gone").mkdir()
    process = subprocess.Popen(
        command, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        pid = noted(note)
        os.killpg(process.pid, number)
        text, _ = process.communicate(timeout=LONGEST_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert until(lambda: not is_alive(pid))
    after = project.snapshots()
    assert "gone/k/layouts.txt" in after
    assert {file: after[file] for file in before} == before
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert left_behind()
        project.run("a/k.py", "-k", "compile").outcomes(passed=1, deselected=3)
    else:
        assert process.returncode == pytest.ExitCode.INTERRUPTED, text
        assert "KeyboardInterrupt" in text
        assert "INTERNALERROR" not in text
        assert "unused" not in text
        assert "nvfp4: stopped: " in text
        assert "did not run; their snapshots and baselines are unchanged" in text
    assert not left_behind()

"""Ctrl-C in the middle of a run, in the real process: nothing is lost, nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import LONGEST_S, noted

from .conftest import Project, is_alive, left_behind
from .sources import ENTRY


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX's")
def test_control_c(project: Project, workers: tuple[str, ...]) -> None:
    """Snapshots of finished checks are written, the others stay, and the compile in hand ends with the run."""
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
    command += ["--nvfp4-device=none", "--snapshot-update", "a", "b", "gone"]
    (project.path / "gone").mkdir()
    process = subprocess.Popen(
        command, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        pid = noted(note)
        os.killpg(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=LONGEST_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, text
    assert "KeyboardInterrupt" in text
    assert "INTERNALERROR" not in text
    assert "unused" not in text
    assert not is_alive(pid)
    after = project.snapshots()
    assert "gone/k/layouts.txt" in after
    assert {file: after[file] for file in before} == before
    assert not left_behind()

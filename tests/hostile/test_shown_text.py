"""What a kernel prints, raises and is called by reaches no terminal, log or report as a command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .running import PROGRAMS, SHARED

pytest.importorskip("cutlass")


@pytest.mark.slow
def test_text_of_a_kernel_commands_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for path in SHARED.glob("*.py"):
        shutil.copy(path, tmp_path)
    shutil.copy(PROGRAMS / "parent/text_of_an_exception.py", tmp_path / "k.py")
    command = [sys.executable, "-m", "pytest", "k.py", "--nvfp4-problem=3x128x256", "-rA", "-v", "--junitxml=junit.xml"]
    summary = tmp_path / "summary.md"
    environ = {**os.environ, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), "PY_COLORS": "0"}
    environ |= {"NVFP4_CACHE_DIR": str(tmp_path / "cache"), "GITHUB_WORKSPACE": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, env=environ)
    shown = (done.stdout + done.stderr).decode()
    assert "owned" in shown, shown
    assert "INTERNALERROR" not in shown
    for text in (shown, (tmp_path / "junit.xml").read_text(), summary.read_text() if summary.exists() else ""):
        assert not re.search("[\x00\x07\x1b\u202e]", text), re.findall(".*[\x00\x07\x1b\u202e].*", text)[:3]
        assert not re.search(r"^\s*::error file=x", text, re.MULTILINE)

"""The stack of a crashed kernel's process is read from a folder in which the kernel may have put anything."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pytest_nvfp4.device.worker.kernel_stack import crash


@pytest.mark.parametrize("kind", ["file", "pipe", "link", "outside"])
def test_only_a_line_of_the_kernel_is_shown(tmp_path: Path, kind: str) -> None:
    sources = tmp_path / "source"
    sources.mkdir()
    file, secret = sources / "kernel.py", tmp_path / "secret.py"
    secret.write_text("first\nsecret\n")
    if kind == "file":
        file.write_text("first\n  crash()\n")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(secret)
    named = sources / ".." / "secret.py" if kind == "outside" else file
    stack = tmp_path / "stack"
    stack.write_text(f'Fatal Python error\n\n  File "{named}", line 2 in call\n')
    finding = crash(signal.SIGSEGV, str(stack), sources=str(sources))
    assert finding.line == 2
    assert finding.text == ("crash()" if kind == "file" else None)

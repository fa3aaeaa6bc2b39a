"""An exception that cannot unwind through C is kept, and its text survives the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from pytest_nvfp4.device.worker.kernel_stack import crash
from pytest_nvfp4.host.stashed import Stashed


def test_the_first_exception_is_kept_and_taken_once(tmp_path: Path) -> None:
    path = tmp_path / "unraised"
    with path.open("w") as record:
        stashed = Stashed(record)
        first = ValueError("the cause\nits detail")
        stashed.keep(first)
        stashed.keep(KeyError("a consequence"))
        assert "ValueError: the cause\n" in path.read_text()
        assert stashed.pending
        assert stashed.take() is first
        assert stashed.take() is None
        assert path.read_text() == ""
        stashed.keep(KeyError("a later one"))
        assert path.read_text().startswith(
            "Raised by a stand-in and not yet by the host code: KeyError: 'a later one'\n"
        )


def test_an_abort_after_a_failed_call_names_the_call_and_the_line(tmp_path: Path) -> None:
    sources = tmp_path / "source"
    sources.mkdir()
    kernel, stack = sources / "kernel.py", tmp_path / "stack"
    kernel.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pytest_nvfp4.device.worker.kernel_stack import write_stack_to\n"
        "from pytest_nvfp4.host.stashed import Stashed\n"
        "record = write_stack_to(Path(sys.argv[1]))\n"
        "if sys.argv[2] == 'after a call':\n"
        "    Stashed(record).keep(ValueError('cuFooBar has no stand-in'))\n"
        "os.abort()  # as native code does\n"
    )
    for when, said in (
        ("after a call", "SIGABRT after a call that failed: ValueError: cuFooBar has no"),
        ("", "abort"),
    ):
        end = subprocess.run([sys.executable, str(kernel), str(stack), when], check=False, capture_output=True)
        assert end.returncode == -signal.SIGABRT
        finding = crash(signal.SIGABRT, str(stack), sources=str(sources))
        assert said in finding.message
        assert (finding.line, finding.text) == (8, "os.abort()  # as native code does")
        assert ("cuFooBar" in finding.message) == bool(when)

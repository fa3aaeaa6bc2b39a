"""The log of NVRTC on standard error gives the finding of a failed compile its line."""

from __future__ import annotations

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain.diagnosis import with_diagnostics

LOG = 'noise\n/tmp/kernel.py(29): error: identifier "zero" is undefined\n          float part = zero;\n'
FAILED = Finding("compile", "kernel.py did not compile: RuntimeError: 6", file="/tmp/kernel.py", line=44, text="raise")


def test_an_error_that_host_code_does_not_show() -> None:
    found = with_diagnostics(FAILED, LOG)
    assert (found.file, found.line, found.text) == ("/tmp/kernel.py", 29, None)
    assert found.message.endswith('the compiler wrote: /tmp/kernel.py:29: error: identifier "zero" is undefined')


def test_other_findings_and_texts_are_left_alone() -> None:
    run = Finding("run", "its host code failed")
    assert with_diagnostics(run, LOG) is run
    assert with_diagnostics(FAILED, "kernel.py: error: something") == FAILED
    shown = Finding("compile", f"failed: {LOG}", file="/tmp/kernel.py", line=29)
    assert with_diagnostics(shown, LOG) == shown

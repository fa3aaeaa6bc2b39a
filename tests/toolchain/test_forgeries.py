"""A trace that the kernel's own file forges is refused, whatever it changes in the process that compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import TraceIt
from .forgeries import FORGERIES
from .kernels import TINY

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_trace_is_refused(trace_it: TraceIt, forgery: str) -> None:
    text, word = FORGERIES[forgery]
    trace = trace_it(text + TINY, entry="launch")
    assert not trace.ok
    assert word in "\n".join(map(str, trace.errors)), trace.findings


@pytest.mark.slow
@pytest.mark.parametrize("forged", [False, True])
def test_what_torch_replaces_is_replaced_before_the_kernel_runs(
    trace_it: TraceIt, tmp_path: Path, forged: bool
) -> None:
    """A kernel whose own file does not name torch; one that passes a function of its own off as torch's is refused."""
    (tmp_path / "helper.py").write_text("import torch.package.package_importer as importer\n")
    own = (
        "import helper, inspect\nREAL = helper.importer._patched_getfile\nassert inspect.getfile is REAL\n"
        "def _patched_getfile(object):\n    return REAL(object)\n"
        "_patched_getfile.__module__ = REAL.__module__\n"
        "inspect.getfile = helper.importer._patched_getfile = _patched_getfile\n"
    )
    trace = trace_it((own if forged else "import helper\n") + TINY)
    assert trace.ok is not forged, trace.findings
    assert ["replaced inspect.getfile" in str(finding) for finding in trace.errors] == [True] * forged

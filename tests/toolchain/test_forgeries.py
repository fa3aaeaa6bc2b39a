"""A trace that the kernel's own file forges is refused, whatever it changes in the process that compiles."""

from __future__ import annotations

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

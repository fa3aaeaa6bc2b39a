"""What ``nvfp4 exec`` says of how a program ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_nvfp4.isolation import ProcessEnd

from .helpers import Result


@pytest.mark.parametrize("stopped", [True, False])
def test_a_program_that_was_stopped_is_told(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """Also a program may end with 124: that is its own business."""
    ended = ProcessEnd(returncode=-9 if stopped else 124, timed_out=stopped, wall_s=2.0)
    monkeypatch.setattr("pytest_nvfp4.device.execute.execute", lambda *_, **__: ended)
    done = cli("exec", "--device", "sim", "--timeout", "2", "pass")
    assert done.code == 124
    told = "nvfp4: the program was stopped after 2 s; raise --timeout if it needs more\n"
    assert done.err == (told if stopped else "")

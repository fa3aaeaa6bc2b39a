"""What ``nvfp4 exec`` says of how a program ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_nvfp4.device.execute import execute
from pytest_nvfp4.device.remote.base import PythonProgram
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


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["", "1"])
@pytest.mark.parametrize("text", ["", "HostSideError: cuFooBar has no stand-in"])
def test_an_exception_that_native_code_ended_is_shown(text: str, dies: str) -> None:
    """Native code that aborts after a failed call of a stand-in leaves its exception in a file of its process.

    A process that the program starts may be the one that aborts, so that the program itself may end with success.
    """
    program = PythonProgram(
        source="import os\nfrom pathlib import Path\n"
        "Path(__file__).with_name(f'unraised-{os.getpid() + 1}').write_text(os.environ['TEXT'])\n"
        "os.abort() if os.environ['DIES'] else None\n",
        deadline_s=60.0,
    )
    shown: list[bytes] = []
    end = execute(
        program, backend="host", on_output=lambda _, data: shown.append(data), environ={"TEXT": text, "DIES": dies}
    )
    assert (end.returncode < 0) == bool(dies)
    assert (b"cuFooBar" in b"".join(shown)) == bool(text)

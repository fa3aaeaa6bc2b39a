"""Live progress: what a run waits for, in a line below pytest's own on a terminal, else in a line now and then.

The jobs and their stages are those of ``activity``. A test process of xdist leaves them in a file for the controlling
process, which alone writes to the terminal. Nothing is shown with ``-q -q``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_nvfp4.activity import ACTIVITIES
from pytest_nvfp4.plugin.state import xdist_worker
from pytest_nvfp4.temporary import TemporaryFolder
from pytest_nvfp4.text import plural, shortened

NAME: Final = "nvfp4-live"
"""Name of the plugin."""
_INPUT: Final = "nvfp4_live"
_POLL_S: Final = 0.5
_SHOWN_AFTER_S: Final = 2.0
"""Seconds without a report after which a terminal shows progress."""
_HEARTBEAT_S: Final = 20.0
"""Seconds without a line after which a log gets one."""
_MOST_JOBS: Final = 2
_LEAST_JOB: Final = 32
"""Characters of a job that a line shows, else it shows less of the item."""
_MOST_CHARACTERS: Final = 2000


def progress_line(item: str, jobs: Sequence[str], queued: int, *, width: int | None) -> str:
    """Return the item that runs, the jobs that it may wait for, and the number of further jobs.

    On a narrow line the second job is counted only, and the first one loses its middle: its stage, its seconds and the
    number of jobs stay. ``width`` is that of the line; None for one without end.
    """
    for shown in range(min(_MOST_JOBS, len(jobs)), 0, -1):
        more = len(jobs) - shown + queued
        after = f"; {plural(more, 'more job')}" if more else ""
        text = "nvfp4: " + "; ".join(filter(None, (item, *jobs[:shown]))) + after
        if width is None or len(text) <= width:
            return text
    seconds, _, node = item.partition(" s ")
    for before in (f"nvfp4: {item}; ", f"nvfp4: {seconds} s {node.rpartition('::')[2]}; ", "nvfp4: "):
        room = (width or 0) - len(before) - len(after)
        if item and room >= _LEAST_JOB:
            break
    return before + shortened(jobs[0], room) + after


class StatusLine:
    """A line below the one that pytest writes, on the terminal of a descriptor.

    pytest redirects descriptor 1 while a test runs, so this writes to a copy that was made before.
    """

    def __init__(self, descriptor: int, column: Callable[[], int]) -> None:
        self._descriptor = descriptor
        self._column = column
        self._shown = False

    def show(self, text: str) -> None:
        """Show a text in place of the last one."""
        start = "\r" if self._shown else "\n"
        self._shown = True
        self._write(f"{start}\x1b[2K\x1b[2m{text[: self.width]}\x1b[0m")

    @property
    def width(self) -> int:
        """Characters that fit."""
        return max(20, shutil.get_terminal_size().columns - 1)

    def clear(self) -> None:
        """Remove the line, and return to where pytest goes on."""
        if self._shown:
            self._shown = False
            self._write(f"\r\x1b[2K\x1b[1A\x1b[{self._column() + 1}G")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal
            os.write(self._descriptor, text.encode("utf-8", "replace"))


class LiveProgress:
    """A pytest plugin that shows what a run waits for.

    Args:
        config: pytest's configuration.
        queued: Returns the number of tasks that have not begun.
    """

    def __init__(self, config: pytest.Config, queued: Callable[[], int]) -> None:
        self._config = config
        self._queued = queued
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._running: dict[str, float] = {}
        self._last = time.monotonic()
        self._folder: TemporaryFolder | None = None
        self._copy = -1
        self._line: StatusLine | None = None
        self._thread: threading.Thread | None = None

    def pytest_sessionstart(self) -> None:
        """Begin to show progress; pytest does not capture yet, so descriptor 1 is its output."""
        file = getattr(self._config, "workerinput", {}).get(_INPUT)
        if xdist_worker(self._config) is not None:
            if file is None:
                return
            act = lambda: self._leave(Path(file))  # noqa: E731
        elif self._config.get_verbosity() < -1 or not self._config.pluginmanager.hasplugin("terminalreporter"):
            return
        else:
            self._copy = os.dup(1)
            if self._is_terminal():
                self._line = StatusLine(self._copy, lambda: self._config.get_terminal_writer().width_of_current_line)
            act = self._show
        self._thread = threading.Thread(target=self._repeat, args=(act,), name=NAME, daemon=True)
        self._thread.start()

    def _is_terminal(self) -> bool:
        plain = os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb"
        return not plain and self._config.getoption("capture") != "no" and os.isatty(self._copy)

    def pytest_sessionfinish(self) -> None:
        """End the thread, and remove the line."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with self.quiet():
            if self._copy >= 0:
                os.close(self._copy)
                self._copy, self._line = -1, None
        if self._folder is not None:
            self._folder.remove()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Name the file in which a test process of xdist on this machine leaves what it waits for."""
        if self._folder is None:
            self._folder = TemporaryFolder("live")
        node.workerinput[_INPUT] = str(self._folder.path / node.workerinput["workerid"])

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self._ended.wait(_POLL_S):
            with self._lock:
                act()

    # ---- what is shown -------------------------------------------------------------------------------------------

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._last < (_HEARTBEAT_S if self._line is None else _SHOWN_AFTER_S):
            return
        text = self._text(now)
        if not text:
            return
        if self._line is not None:
            self._line.show(text)
            return
        self._last = now
        column = self._config.get_terminal_writer().width_of_current_line
        with contextlib.suppress(OSError):
            os.write(self._copy, f"{chr(10) if column else ''}{text}\n".encode("utf-8", "replace"))

    def _text(self, now: float) -> str:
        """Return what the run waits for; empty if it waits for no job."""
        jobs = [str(activity) for activity in ACTIVITIES.snapshot()]
        queued = self._queued()
        if self._folder is not None:
            for file in sorted(self._folder.path.iterdir()):
                with contextlib.suppress(OSError, ValueError):
                    jobs += file.read_text(encoding="utf-8")[:_MOST_CHARACTERS].splitlines()
        if not jobs:
            return ""
        item = ""
        if self._running:
            node, since = next(iter(self._running.items()))
            item = f"{now - since:.0f} s {node.rpartition('/')[2]}"
        return progress_line(item, jobs, queued, width=self._line.width if self._line is not None else None)

    def _leave(self, file: Path) -> None:
        text = "\n".join(str(activity) for activity in ACTIVITIES.snapshot())
        with contextlib.suppress(OSError):
            if text or file.exists():
                file.write_text(text, encoding="utf-8")

    # ---- when pytest writes --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Show nothing while the block writes to the terminal."""
        with self._lock:
            if self._line is not None:
                self._line.clear()
            yield
            self._last = time.monotonic()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, Any, Any]:
        """Note the item that runs."""
        self._running[nodeid] = time.monotonic()
        with self.quiet():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None, Any, Any]:
        """Leave the terminal to pytest."""
        with self.quiet():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> Generator[None, Any, Any]:
        """Forget the item."""
        self._running.pop(nodeid, None)
        with self.quiet():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Leave the terminal to pytest."""
        with self.quiet():
            pass

    @pytest.hookimpl(tryfirst=True)
    def pytest_enter_pdb(self) -> None:
        """Show nothing more: the terminal is the debugger's."""
        with self.quiet():
            self._ended.set()

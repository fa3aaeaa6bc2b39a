"""``--nvfp4-remote``: what the user asked for, the session on the remote, and its part in the life of a run.

With xdist the controlling process talks to the remote, once, and the test processes ask it (``device.remote.broker``).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase
    from pytest_nvfp4.device.remote.base import RemoteOptions
    from pytest_nvfp4.device.remote.broker import Broker
    from pytest_nvfp4.device.remote.device import RemoteDevice
    from pytest_nvfp4.device.remote.progress import Progress
    from pytest_nvfp4.device.remote.session import RemoteSession
    from pytest_nvfp4.device.result import Result
    from pytest_nvfp4.plugin.ahead import Ahead

_INPUT = "nvfp4_broker"
"""Under which name a test process of xdist is told where the broker is."""
_TERMINAL_S, _LOG_S = 10.0, 30.0
"""Seconds between two lines of progress: on a terminal, and in a log."""


@dataclass(frozen=True, slots=True)
class RemoteRequest:
    """The remote that was asked for.

    Attributes:
        spec: ``NAME`` or ``NAME:TARGET``.
        options: What else was asked for.
        reuse: Take results of earlier sessions.
    """

    spec: str
    options: RemoteOptions
    reuse: bool

    @property
    def name(self) -> str:
        """The name of the remote."""
        return self.spec.partition(":")[0]

    def __str__(self) -> str:
        several = "" if self.options.containers == 1 else f", up to {self.options.containers} at once"
        return f"{self.spec}: {self.options.gpu}{several}"


def add(group: pytest.OptionGroup) -> None:
    """Declare the options."""
    group.addoption(
        "--nvfp4-remote",
        metavar="NAME[:TARGET]",
        help="run verify and benchmark checks on a rented or distant GPU: modal, ssh:HOST, or a remote that another "
        "package adds; what can be done here is done here",
    )
    group.addoption("--nvfp4-gpu", default="B200", metavar="GPU", help="the remote's GPU (default: B200)")
    group.addoption(
        "--nvfp4-remote-timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="seconds without an answer of the remote, waiting for a machine included, after which it is given up "
        "(default: 900)",
    )
    group.addoption(
        "--nvfp4-remote-max-cost",
        type=float,
        metavar="USD",
        help="end the remote session when its estimated cost reaches this many dollars",
    )
    group.addoption(
        "--nvfp4-remote-containers",
        type=int,
        default=1,
        metavar="N",
        help="machines or containers of the remote to use at once (default: 1)",
    )
    group.addoption(
        "--nvfp4-deployed-app", metavar="APP", help="use this app, deployed before, instead of starting one (modal)"
    )
    group.addoption(
        "--nvfp4-remote-single-use",
        action="store_true",
        help="give every batch of jobs a container that no other kernel has seen (slower; for kernels of strangers)",
    )
    group.addoption(
        "--nvfp4-resume",
        action="store_true",
        help="take the remote's results of earlier sessions where kernel, problem and GPU are the same, instead of "
        "paying for them again (--lf does so too; --nvfp4-fresh does not)",
    )


def read(config: pytest.Config) -> RemoteRequest | None:
    """What was asked for; None for no remote. Raises pytest.UsageError."""
    spec: str | None = config.getoption("--nvfp4-remote")
    if spec is None:
        return None
    from pytest_nvfp4.device.remote.base import RemoteError, RemoteOptions
    from pytest_nvfp4.device.remote.registry import remote

    if (device := config.getoption("--nvfp4-device")) != "auto":
        raise pytest.UsageError(f"--nvfp4-remote={spec} and --nvfp4-device={device} name two devices: give one of them")
    containers = config.getoption("--nvfp4-remote-containers")
    if not 1 <= containers <= 256:
        raise pytest.UsageError(f"--nvfp4-remote-containers {containers} must be 1 to 256")
    timeout, most = config.getoption("--nvfp4-remote-timeout"), config.getoption("--nvfp4-remote-max-cost")
    if not 0 < timeout <= 86_400:
        raise pytest.UsageError(f"--nvfp4-remote-timeout {timeout:g} must be more than 0 and at most 86400 seconds")
    if most is not None and not most > 0:
        raise pytest.UsageError(f"--nvfp4-remote-max-cost {most:g} must be more than zero dollars")
    options = RemoteOptions(
        target=spec.partition(":")[2],
        gpu=config.getoption("--nvfp4-gpu"),
        timeout_s=timeout,
        max_cost=most,
        containers=containers,
        deployed_app=config.getoption("--nvfp4-deployed-app"),
        single_use=bool(config.getoption("--nvfp4-remote-single-use")),
    )
    if not hasattr(config, "workerinput"):
        try:
            remote(spec, options)  # it contacts nothing; options it refuses are said before anything is compiled
        except RemoteError as error:
            raise pytest.UsageError(f"--nvfp4-remote={spec}: {error}") from error
    fresh = bool(config.getoption("--nvfp4-fresh"))
    reuse = bool(config.getoption("--nvfp4-resume") or config.getoption("lf", default=False)) and not fresh
    return RemoteRequest(spec, options, reuse)


class RemoteRun:
    """The remote of a run: its device once one is needed, its progress, and its end."""

    def __init__(self, config: pytest.Config, request: RemoteRequest) -> None:
        self._config = config
        self.request = request
        self._lock = threading.RLock()
        self._device: RemoteDevice | None = None
        self._session: RemoteSession | None = None
        self._broker: Broker | None = None
        self._ahead: Ahead | None = None
        self._said = time.monotonic()
        self._closed = False

    @property
    def device(self) -> RemoteDevice:
        """The device. Contacts nothing yet; what is sent to it does."""
        from pytest_nvfp4.device.remote.device import RemoteDevice

        with self._lock:
            if self._device is None:
                self._device = RemoteDevice(self.session, name=self.request.name, gpu=self.request.options.gpu)
            return self._device

    @property
    def session(self) -> RemoteSession:
        """The session; in a test process of xdist, one with the controlling process."""
        from pytest_nvfp4.device.remote.broker import BrokerRemote
        from pytest_nvfp4.device.remote.registry import remote
        from pytest_nvfp4.device.remote.session import RemoteSession

        with self._lock:
            if self._session is None:
                options = self.request.options
                address = getattr(self._config, "workerinput", {}).get(_INPUT)
                if address is not None:
                    # Deadlines and costs are watched over there; this side only must not give up before.
                    self._session = RemoteSession(
                        BrokerRemote(address, name=self.request.name), containers=10_000, timeout_s=10 * 86_400
                    )
                else:
                    chosen = remote(self.request.spec, options)
                    self._session = RemoteSession(
                        chosen,
                        containers=options.containers,
                        timeout_s=options.timeout_s,
                        max_cost=options.max_cost,
                        kept=self._kept(getattr(chosen, "kept_as", "")),
                        reuse=self.request.reuse,
                        on_progress=self._progress,
                    )
            return self._session

    def companions(self, item: pytest.Item, cases: Sequence[JobCase]) -> list[JobCase]:
        """The cases that run in one job with those of a verify item."""
        from pytest_nvfp4.plugin.ahead import chunk_of

        return chunk_of(item, cases, containers=self.request.options.containers)

    def _kept(self, variant: str) -> Any:
        from pytest_nvfp4.device.remote.kept import KeptAnswers
        from pytest_nvfp4.plugin.state import RUN
        from pytest_nvfp4.toolchain.cache import TraceCache

        root = TraceCache(self._config.stash[RUN].options.cache).root
        kept = KeptAnswers(root, remote=f"{self.request.spec} {self.request.options.gpu}{variant}")
        self._config.add_cleanup(kept.prune)
        return kept

    # hooks

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A test process of xdist is about to start: tell it where the broker is."""
        from pytest_nvfp4.device.remote.broker import Broker

        with self._lock:
            if self._broker is None:
                self._broker = Broker(self.session)
        node.workerinput[_INPUT] = self._broker.address

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The items of the run are known: send ahead what they will ask for."""
        worker = getattr(self._config, "workerinput", {}).get("workerid")
        if self._config.option.collectonly or worker not in (None, "gw0"):
            return  # one process is enough: the broker gives the others the same answers
        if self._config.pluginmanager.hasplugin("dsession"):
            return  # the controlling process of xdist runs no items
        from pytest_nvfp4.plugin.ahead import Ahead, device_items

        if items := device_items(session.items):
            self._ahead = Ahead(self._config, items)
            self._ahead.start()

    def wait_ahead(self, item: pytest.Item) -> None:
        """Wait until the jobs of an item's file have been sent, where this process sends them."""
        if self._ahead is not None:
            self._ahead.wait(item)

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: cancel at once. Test processes of xdist that wait for answers would hold up the end of the run."""
        self.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Any:
        """The run is over, finished or interrupted: cancel what is open, and give everything back."""
        try:
            return (yield)
        finally:
            self.close()

    def pytest_unconfigure(self) -> None:
        """Close also where the run never began."""
        self.close()

    def close(self) -> None:
        """Cancel what is open, and give everything back."""
        with self._lock:
            closed, self._closed = self._closed, True
            session, broker = self._session, self._broker
        if closed:
            return
        if session is not None:
            session.close()
        if broker is not None:
            broker.close()

    # what is shown

    def _progress(self, progress: Progress) -> None:
        """A line now and then, from the session's thread, past pytest's capture."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        now = time.monotonic()
        every = _TERMINAL_S if sys.stdout.isatty() else _LOG_S
        if reporter is None or not progress.open or now - self._said < every:
            return
        self._said = now
        with contextlib.suppress(Exception):
            reporter.ensure_newline()
            reporter.write_line(f"nvfp4: {self.request.name}: {progress}")
            reporter.flush()

    def show(self, terminal: Any) -> None:
        """At the end: what was done where, and what it cost."""
        if self._session is None or hasattr(self._config, "workerinput"):
            return
        progress, cost = self._session.progress, self._session.cost
        used = progress.done or progress.kept or progress.failed or progress.cancelled
        if not used:
            return
        terminal.write_sep("-", f"nvfp4: {self.request.spec}")
        terminal.write_line(f"{progress}")
        if progress.kept:
            terminal.write_line("results of earlier sessions were used (--nvfp4-fresh runs them again)")
        for device in self._session.devices:
            terminal.write_line(f"answers of: {device}")
        for place in self._session.places.values():
            terminal.write_line(f"{place}")
        if (trouble := self._session.trouble) is not None:
            terminal.write_line(f"ended early: {trouble}")
        if cost.note and progress.done:
            terminal.write_line(f"cost: {cost.note}")


def remote_trouble(result: Result) -> str | None:
    """Why a remote gave no result; None where it gave one."""
    from pytest_nvfp4.device.remote.device import TROUBLE

    return next((finding.message for finding in result.findings if finding.kind == TROUBLE), None)

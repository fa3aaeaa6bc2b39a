"""``--nvfp4-remote``: the options, the session on the remote, and its progress and summary.

With xdist only the controlling process has a session, and the test processes use it through `device.remote.broker`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.device.remote.options import OPTIONS, RemoteOptions
from pytest_nvfp4.end_signals import clean_ends
from pytest_nvfp4.plugin.state import RUN, is_xdist_worker
from pytest_nvfp4.text import printed

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import Job
    from pytest_nvfp4.device.remote.broker import Broker
    from pytest_nvfp4.device.remote.cache import RemoteResultCache
    from pytest_nvfp4.device.remote.device import RemoteDevice
    from pytest_nvfp4.device.remote.estimate import Estimate
    from pytest_nvfp4.device.remote.progress import Progress
    from pytest_nvfp4.device.remote.run_times import RunTimes
    from pytest_nvfp4.device.remote.session import RemoteSession
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.toolchain.tracer import Tracer

_INPUT = "nvfp4_broker"
"""Key of the broker's address in the input of a test process of xdist."""
_UNUSABLE = "nvfp4_remote_unusable"
"""Key there of the reason why the remote cannot be used."""
_TERMINAL_S, _LOG_S = 10.0, 30.0
"""Seconds between two lines of progress: on a terminal, and in a log."""


@dataclass(frozen=True, slots=True)
class RemoteRequest:
    """The requested remote.

    Attributes:
        spec: ``NAME`` or ``NAME:TARGET``.
        options: Further options.
        reuse: Use the cached results of earlier sessions.
        dry: Send nothing, and estimate what would be sent.
        traces: Compile kernels there too.
    """

    spec: str
    options: RemoteOptions
    reuse: bool
    dry: bool = False
    traces: bool = False

    @property
    def name(self) -> str:
        """Name of the remote."""
        return self.spec.partition(":")[0]

    def __str__(self) -> str:
        several = "" if self.options.containers == 1 else f", up to {self.options.containers} at once"
        return f"{self.spec}: {'the simulator' if self.options.simulates else self.options.gpu}{several}"


def add(group: pytest.OptionGroup) -> None:
    """Declare the options."""
    group.addoption(
        "--nvfp4-remote",
        metavar="NAME[:TARGET]",
        help="run verify and benchmark checks on a rented or distant GPU: modal, ssh:HOST, or a remote that another "
        "package adds; everything else runs on this machine. With --nvfp4-device=sim, simulations run there, without a "
        "GPU",
    )
    for option in OPTIONS:
        if option.type is bool:
            group.addoption(option.pytest_flag, action="store_true", help=option.described)
        else:
            group.addoption(
                option.pytest_flag,
                type=option.type,
                default=option.default,
                metavar=option.metavar,
                help=option.described,
            )
    group.addoption(
        "--nvfp4-trace-remote",
        action="store_true",
        help="compile kernels on the remote too, for a machine without the DSL: layouts, launch and codegen compare "
        "what it returns with the snapshots here",
    )
    group.addoption(
        "--nvfp4-resume",
        action="store_true",
        help="use the remote's results of earlier sessions for the same kernel, problem and GPU, instead of paying for "
        "them again (also with --lf; never with --nvfp4-fresh)",
    )
    group.addoption(
        "--nvfp4-remote-dry-run",
        action="store_true",
        help="send nothing and run no check: estimate jobs, calls, seconds and dollars of this run from earlier ones",
    )


def read(config: pytest.Config) -> RemoteRequest | None:
    """Return the requested remote; None for none. Raises pytest.UsageError."""
    spec: str | None = config.getoption("--nvfp4-remote")
    dry = bool(config.getoption("--nvfp4-remote-dry-run"))
    if spec is None:
        if dry:
            raise pytest.UsageError("--nvfp4-remote-dry-run estimates a run on a remote: add --nvfp4-remote=NAME")
        if config.getoption("--nvfp4-trace-remote"):
            raise pytest.UsageError("--nvfp4-trace-remote compiles on a remote: add --nvfp4-remote=NAME")
        return None
    if dry and config.getoption("--nvfp4-trace-remote"):
        raise pytest.UsageError(
            "--nvfp4-remote-dry-run sends nothing, and needs traces: leave out --nvfp4-trace-remote"
        )
    if dry and config.getoption("dist", "no") != "no":
        raise pytest.UsageError("--nvfp4-remote-dry-run runs nothing, so it needs no test processes: add -n0")
    from pytest_nvfp4.device.remote.base import RemoteError
    from pytest_nvfp4.device.remote.gpus import capability_of
    from pytest_nvfp4.device.remote.registry import remote

    if (device := config.getoption("--nvfp4-device")) not in ("auto", "sim"):
        raise pytest.UsageError(
            f"--nvfp4-remote={spec} and --nvfp4-device={device} name two devices: give one of them, or "
            "--nvfp4-device=sim to simulate there"
        )
    values = {option.field: config.getoption(option.pytest_flag) for option in OPTIONS}
    for option in OPTIONS:
        if (error := option.error(option.pytest_flag, values[option.field])) is not None:
            raise pytest.UsageError(error)
    options = RemoteOptions(target=spec.partition(":")[2], simulates=device == "sim", **values)
    if config.getoption("--nvfp4-profile", None) is not None:
        options = replace(options, profilers=True)
    if not is_xdist_worker(config):
        try:
            if not options.simulates:
                capability_of(options)
            remote(spec, options)  # contacts nothing, and refuses invalid options before anything is compiled
        except RemoteError as error:
            raise pytest.UsageError(f"--nvfp4-remote={spec}: {error}") from error
    fresh = bool(config.getoption("--nvfp4-fresh"))
    reuse = bool(config.getoption("--nvfp4-resume") or config.getoption("lf", default=False)) and not fresh
    return RemoteRequest(spec, options, reuse, dry, bool(config.getoption("--nvfp4-trace-remote")))


class RemoteRun:
    """The remote of a run: its session and device, which are made when they are first required, and its progress."""

    def __init__(self, config: pytest.Config, request: RemoteRequest) -> None:
        self._config = config
        self.request = request
        self._lock = threading.RLock()
        self._device: RemoteDevice | None = None
        self._session: RemoteSession | None = None
        self._broker: Broker | None = None
        self._unsent: dict[object, threading.Event] = {}
        self._last_line = time.monotonic()
        self._closed = False
        self._ending = contextlib.ExitStack()

    @property
    def device(self) -> RemoteDevice:
        """The device. It contacts nothing until a job is sent."""
        from pytest_nvfp4.device.remote.device import RemoteDevice
        from pytest_nvfp4.device.remote.gpus import capability_of
        from pytest_nvfp4.isolation.cancellation import check

        with self._lock:
            if self._device is None:
                options = self.request.options
                self._device = RemoteDevice(
                    self.session,
                    name=self.request.name,
                    gpu=options.gpu,
                    capability=None if options.simulates else capability_of(options),
                    simulates=options.simulates,
                    waiting=check,
                )
            return self._device

    @property
    def session(self) -> RemoteSession:
        """The session; in a test process of xdist, a session with the broker of the controlling process."""
        from pytest_nvfp4.device.remote.broker import BrokerRemote
        from pytest_nvfp4.device.remote.registry import remote
        from pytest_nvfp4.device.remote.session import RemoteSession

        with self._lock:
            if self._session is None:
                options = self.request.options
                address = getattr(self._config, "workerinput", {}).get(_INPUT)
                if address is not None:
                    # The controlling process enforces timeouts and costs; this process must not time out before it.
                    self._session = RemoteSession(
                        BrokerRemote(address, name=self.request.name), containers=10_000, timeout_s=10 * 86_400
                    )
                else:
                    chosen = remote(self.request.spec, options)
                    scope = getattr(chosen, "cache_scope", "")
                    self._session = RemoteSession(
                        chosen,
                        containers=options.containers,
                        timeout_s=options.timeout_s,
                        max_cost=options.max_cost,
                        usd_per_hour=options.gpu_price,
                        cache=self._cache(scope),
                        times=self._times(scope),
                        reuse=self.request.reuse,
                        on_progress=self._progress,
                    )
            return self._session

    def tracer(self, **more: Any) -> Tracer:
        """Return a tracer that compiles on the remote; the arguments are those of ``Tracer``."""
        from pytest_nvfp4.device.remote.registry import remote
        from pytest_nvfp4.device.tracing import RemoteTracer

        environment = getattr(remote(self.request.spec, self.request.options), "environment", "")
        return RemoteTracer(self.device, scope=f"{self.request.spec} {environment}", **more)

    @cached_property
    def unusable(self) -> str | None:
        """Why this machine cannot use the remote, such as without a token; None if it can. Contacts nothing.

        It is known before any kernel is traced. A test process of xdist knows it from the controlling process. A dry
        run does not use the remote.
        """
        if self.request.dry:
            return None
        given: str | None = getattr(self._config, "workerinput", {}).get(_UNUSABLE)
        if given is not None or is_xdist_worker(self._config):
            return given
        error = self.session.check()
        return None if error is None else str(error)

    def expect(self, files: Iterable[object]) -> None:
        """Record kernel files whose jobs another thread will send."""
        self._unsent = {file: threading.Event() for file in files}

    def sent(self, file: object = None) -> None:
        """Record that the jobs of a kernel file have been sent; of all files without an argument."""
        for expected, event in self._unsent.items():
            if file in (None, expected):
                event.set()

    def wait_sent(self, file: object) -> None:
        """Wait until the jobs of a kernel file have been sent: jobs that are compared belong to one batch."""
        event = self._unsent.get(file)
        while event is not None and not event.wait(0.5):
            pass  # poll, so that an interrupt is handled soon

    def _cache(self, scope: str) -> RemoteResultCache:
        from pytest_nvfp4.device.remote.cache import RemoteResultCache

        cache = RemoteResultCache(self._config.stash[RUN].cache.sealed, remote=self._scope(scope))
        self._config.add_cleanup(cache.prune)
        return cache

    def _times(self, scope: str) -> RunTimes:
        from pytest_nvfp4.device.remote.run_times import RunTimes

        times = RunTimes(self._config.stash[RUN].cache.sealed, remote=self._scope(scope))
        self._config.add_cleanup(times.prune)
        return times

    def _scope(self, scope: str) -> str:
        options = self.request.options
        return f"{self.request.spec} {'no GPU' if options.simulates else options.gpu}{scope}"

    def estimate(self, batches: Iterable[tuple[Sequence[Job], int]]) -> Estimate:
        """Estimate the session that sends these jobs, each sequence with its number of blocks. Contacts nothing."""
        from pytest_nvfp4.device.remote.base import Batch
        from pytest_nvfp4.device.remote.estimate import estimate
        from pytest_nvfp4.device.remote.registry import remote
        from pytest_nvfp4.device.remote.schedule import split_batch

        options, capability = self.request.options, self.device.capability
        chosen = remote(self.request.spec, options)
        scope, cost = getattr(chosen, "cache_scope", ""), chosen.cost()
        if cost.usd_per_hour is None:
            cost = replace(cost, usd_per_hour=options.gpu_price)
        sent = (Batch(jobs=tuple(jobs), blocks=blocks, capability=capability) for jobs, blocks in batches)
        return estimate(
            [part for batch in sent for part in split_batch(batch)],
            cache=self._cache(scope),
            times=self._times(scope),
            reuse=self.request.reuse,
            containers=options.containers,
            cost=cost,
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a test process of xdist the address of the broker."""
        from pytest_nvfp4.device.remote.broker import Broker

        with self._lock:
            if self._broker is None:
                self._broker = Broker(self.session)
        node.workerinput[_INPUT] = self._broker.address
        node.workerinput[_UNUSABLE] = self.unusable

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Cancel all jobs at once, because test processes of xdist that wait for results delay the end of the run."""
        self._ending.enter_context(clean_ends(self._left, interrupted=True))
        self.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Any:
        """Close the session at the end of the run, finished or interrupted, before the summary says how it ended."""
        failed: Exception | None = None
        try:
            self.close()
        except Exception as error:  # another package's remote; the other plugins end all the same
            failed = error
        result = yield
        if failed is not None:
            raise failed
        return result

    def pytest_unconfigure(self) -> None:
        """Close the session of a run that never began."""
        self.close()
        self._ending.close()

    def _left(self) -> str:
        return "" if self._session is None else self._session.left

    def close(self) -> None:
        """Cancel open jobs and release the remote's machines."""
        with self._lock:
            closed, self._closed = self._closed, True
            session, broker = self._session, self._broker
        if closed:
            return
        if session is not None:
            session.close()
        if broker is not None:
            broker.close()

    def _progress(self, progress: Progress) -> None:
        """Write a line of progress at intervals, from the session's thread and past pytest's capture."""
        now = time.monotonic()
        every = _TERMINAL_S if sys.stdout.isatty() else _LOG_S
        if progress.open and now - self._last_line >= every:
            self._last_line = now
            self._config.stash[RUN].notify(f"{self.request.name}: {progress}")

    def used(self) -> dict[str, object]:
        """Return what the session used, for the JSON report: seconds of containers, dollars, and what it lost.

        ``failure`` is why a batch has no result, or the session ended early: such a check fails, and says nothing about
        its kernel.
        """
        if self._session is None:
            return {"name": self.request.spec, "seconds": 0.0, "usd": 0.0, "failure": self.unusable}
        cost, failure = self._session.cost, self._session.loss
        return {
            "name": self.request.spec,
            "seconds": round(cost.seconds, 3),
            "usd": cost.usd,
            "failure": None if failure is None else str(failure),
        }

    def summarise(self, terminal: Any) -> None:
        """Write what ran where, and its cost."""
        if self._session is None or is_xdist_worker(self._config):
            return
        progress, cost = self._session.progress, self._session.cost
        used = progress.done or progress.cached or progress.failed or progress.cancelled or self._session.left
        if not used:
            return
        terminal.write_sep("-", f"nvfp4: {self.request.spec}")
        terminal.write_line(f"{progress}")
        if where := self._session.where:
            terminal.write_line(printed(where))
        if progress.cached:
            terminal.write_line("results of earlier sessions were used (--nvfp4-fresh runs them again)")
        for device in self._session.devices:
            terminal.write_line(printed(f"results of: {device}"))
        for place in self._session.places.values():
            terminal.write_line(printed(f"{place}"))
        if (failure := self._session.failure) is not None:
            terminal.write_line(printed(f"ended early: {failure}"))
        if cost.note and progress.done:
            terminal.write_line(f"cost: {cost.note}")
        if left := self._session.left:
            terminal.write_line(printed(left))


def remote_error(findings: Sequence[Finding]) -> str | None:
    """Return why a remote returned no result; None if it returned one."""
    from pytest_nvfp4.device.remote.device import REMOTE_ERROR

    return next((finding.message for finding in findings if finding.kind == REMOTE_ERROR), None)

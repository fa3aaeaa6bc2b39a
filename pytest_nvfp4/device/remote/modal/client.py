"""Remote ``modal``: each batch is one call of a Modal app, which runs it in a container."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_nvfp4.device.remote.base import (
    Batch,
    BatchResult,
    Cost,
    Place,
    PythonProgram,
    RemoteCall,
    RemoteError,
    RemoteOptions,
    RemoteStatus,
)
from pytest_nvfp4.device.remote.executor import BACKENDS
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.connection import Connection
from pytest_nvfp4.device.remote.modal.cost import NOTE, Meter, usd_per_hour
from pytest_nvfp4.device.remote.modal.errors import is_damaged, silent
from pytest_nvfp4.device.remote.modal.login import find_login
from pytest_nvfp4.device.remote.modal.loop import abandon
from pytest_nvfp4.device.remote.modal.program_run import ProgramRun
from pytest_nvfp4.device.remote.modal.response import read_response
from pytest_nvfp4.device.remote.modal.settings import SCALEDOWN_S, WARM_S, ModalSettings
from pytest_nvfp4.device.remote.parts import sent_code, simulator_scope
from pytest_nvfp4.device.remote.serialization import compress, pack_batch
from pytest_nvfp4.isolation import OnOutput

_POLL_S = 0.5
_APP_ID = re.compile(r"(?<=\s)ap-[A-Za-z0-9]+(?=\s|$)")
_MAX_DAMAGED = 3
"""Number of unreadable responses to one call after which it is abandoned."""


class ModalRemote:
    """Containers on Modal, each with a GPU or with the simulator."""

    name = "modal"

    def __init__(self, options: RemoteOptions) -> None:
        if options.target:
            raise RemoteError(
                "setup",
                f"--nvfp4-remote=modal:{options.target}: modal has no targets",
                "name a deployed app with --nvfp4-deployed-app",
            )
        self.options = options
        self.settings = ModalSettings.of(options)
        source = "the list price of the GPU" if options.gpu_price is None else "the given price of the GPU"
        self._meter = Meter(
            usd_per_hour(options, self.settings),
            options.containers,
            idle_s=0.0 if options.single_use else SCALEDOWN_S,
            note=NOTE.format(price="no GPU" if self.settings.simulates else source),
        )
        self._connection = Connection(options, self.settings, none_up=self._meter.none_up)
        self._ended: queue.Queue[RemoteCall] = queue.Queue()
        self.on_call: Callable[[Batch, str], None] | None = None
        self._watchers: dict[str, concurrent.futures.Future[None]] = {}

    @property
    def cache_scope(self) -> str:
        """Suffix of the cache's name, so that a simulator's result is never reused as a GPU's."""
        backend = self.settings.backend
        return simulator_scope() if backend == "sim" else "" if backend == "cuda" else f" backend {backend}"

    @property
    def container_memory_gib(self) -> int:
        """Limit on the memory of a container in GiB."""
        return self.settings.memory_gib

    @property
    def environment(self) -> str:
        """Description of the environment that compiles kernels, on which traces made there depend."""
        return self.settings.label

    @property
    def _code(self) -> str:
        """Hash of the code that the containers must have; empty for an app of the session, which has just got it."""
        return sent_code(self.settings.backend) if self.options.deployed_app else ""

    def describe(self) -> str:
        """Return a description of one line."""
        usd = self._meter.cost().usd_per_hour
        money = "" if usd is None else f", about ${usd:.2f} an hour each"
        device = self.options.gpu
        if self.settings.simulates:
            device = f"the simulator on {self.settings.cpus:g} cores with {self.settings.memory_gib} GiB"
        elif self.settings.backend != "cuda":
            device = f"no GPU but the backend {self.settings.backend!r}"
        app = f"deployed app {self.options.deployed_app}" if self.options.deployed_app else "an app of the session"
        several = "" if self.options.containers == 1 else f", up to {self.options.containers} at once"
        return f"modal: {device}{money}{several}; {app}"

    def check(self) -> None:
        """Raise RemoteError without a client or a token. Contacts nothing."""
        find_login()

    def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
        """Send batches; the first time, connect and start the app."""
        self._open()
        update = {"backend": self.settings.backend, "code": self._code}
        texts = [compress(pack_batch(batch.model_copy(update=update))) for batch in batches]
        try:
            # Modal's client stops after the same time; a little longer, so that its own error is reported.
            timeout_s = self.options.timeout_s + timeouts.SENT_S
            modal_calls = self._connection.run(self._spawn(batches, texts), timeout_s=timeout_s)
        except concurrent.futures.TimeoutError:
            raise silent(self.options.timeout_s, doing="sending jobs") from None
        except concurrent.futures.CancelledError as error:
            raise self._connection.explained(error, "sending jobs") from None
        return [
            self._watched(RemoteCall(batch, modal_call.object_id), modal_call)
            for batch, modal_call in zip(batches, modal_calls, strict=True)
        ]

    def attach(self, batch: Batch, call: str, where: str) -> RemoteCall:
        """Wait again for a call that an earlier session made; see `Remote`. Starts no app."""
        self._connection.connect()
        modal_call = self._connection.run(self._connection.call(call), timeout_s=timeouts.CONNECT_S)
        found = _APP_ID.search(where)
        return self._watched(RemoteCall(batch, call), modal_call, app=found.group() if found else "")

    def _watched(self, call: RemoteCall, modal_call: Any, *, app: str = "") -> RemoteCall:
        """Return the call, for whose end the connection's thread waits from now on; of another app if one is named."""
        self._connection.tracker.started(call.id, "batch")  # for a client that cannot be tracked
        self._meter.sent(call.id)
        self._watchers[call.id] = self._connection.start(self._watch(call, modal_call, app))
        return call

    def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:
        """Yield the ends of calls; see `Remote`."""
        left = {call.id for call in calls}
        until = time.monotonic() + timeout_s
        while left:
            try:
                ended = self._ended.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if ended.id in left:
                left.discard(ended.id)
                yield ended

    def cancel(self, calls: Sequence[RemoteCall]) -> None:
        """Cancel calls; a container that runs one stops the kernel's process and takes the next call."""
        for call in calls:
            if (watcher := self._watchers.pop(call.id, None)) is not None:
                watcher.cancel()
            self._meter.ended(call.id)
        tracked = set(self._connection.tracker.open())
        if names := [call.id for call in calls if call.id in tracked]:
            with contextlib.suppress(Exception, concurrent.futures.CancelledError):
                self._connection.run(self._connection.cancel(names), timeout_s=timeouts.CANCEL_S)

    def status(self) -> RemoteStatus:
        """Return the status of the app in use; before one is used, of all apps of this tool. Starts none."""
        details = {"gpu": "none" if self.settings.simulates else self.options.gpu, "image": self.settings.label}
        try:
            if self.options.deployed_app is None and self._connection.runner is None:
                return self._status_of_all(details)
            self._open()
            details["app"] = self.where
            request = self._connection.runner.batch.get_current_stats.aio()
            stats = self._connection.run(request, timeout_s=timeouts.STATUS_S)
        except RemoteError as error:
            return RemoteStatus(False, str(error), None, details)
        except concurrent.futures.TimeoutError:
            summary = f"Modal's server did not respond within {timeouts.STATUS_S:.0f} s"
            return RemoteStatus(False, summary, None, details)
        except Exception as error:
            summary = str(self._connection.explained(error, "requesting the status"))
            return RemoteStatus(True, summary, None, details)
        if stats.num_total_runners == 0:
            self._meter.none_up()
        summary = f"{stats.num_total_runners} containers, {stats.backlog} queued jobs"
        return RemoteStatus(True, summary, int(stats.num_total_runners), details)

    def _status_of_all(self, details: dict[str, str]) -> RemoteStatus:
        self._connection.connect()
        found = self._connection.run(self._connection.running_apps(), timeout_s=timeouts.STATUS_S)
        summary = "; ".join(map(str, found)) or "nothing of this tool runs"
        return RemoteStatus(True, summary, sum(app.containers for app in found), details)

    def warm(self) -> None:
        """Start a container that the next sessions with these options use, and wait until it has run a job.

        It belongs to an app that outlives this object. If no container can be used, that app is stopped.
        """
        from pytest_nvfp4.device.job import Job

        self._open(warm=True)
        probe = Batch(jobs=(Job(id="warm", action="probe", deadline_s=120),), capability=self.settings.capability)
        try:
            calls = self.submit([probe])
            ended = next(self.collect(calls, timeout_s=self.options.timeout_s), None)
            if ended is None:
                self.cancel(calls)
                problem = f"no container was ready within {self.options.timeout_s:.0f} s"
                raise RemoteError("capacity", problem, "raise the timeout, or try again later")
            if ended.error is not None:
                raise ended.error
            assert ended.result is not None
            (result,) = ended.result.results
            if result.status != "passed":
                raise RemoteError("remote", f"the container cannot be used: {result.reason}")
        except BaseException:
            self._connection.discard()
            raise

    def stop(self) -> None:
        """Cancel open calls, end the app of the session and close the connection.

        A deployed or warmed app stays; its containers end when they have been idle for a while.
        """
        self._connection.close()
        app = self._connection.app
        self._meter.stopped(containers_end=app is None or app.ended)

    def end_all(self) -> list[str]:
        """End what runs on Modal of this tool, of other sessions too; see `Remote`."""
        self._connection.connect()
        try:
            ending = self._connection.end_apps(self.options.deployed_app)
            found = self._connection.run(ending, timeout_s=timeouts.STATUS_S + 2 * timeouts.STOP_S)
        except concurrent.futures.TimeoutError:
            raise silent(timeouts.STATUS_S + 2 * timeouts.STOP_S, doing="stopping apps") from None
        except Exception as error:
            raise self._connection.explained(error, "stopping apps") from None
        finally:
            self._connection.close()
        return [str(app) for app in found]

    def left(self) -> str:
        """Return what may still run after `stop`, and the command that ends it; empty if nothing can."""
        return self._connection.left()

    @property
    def where(self) -> str:
        """The app and its page, once it is known."""
        return "" if self._connection.app is None else str(self._connection.app)

    @property
    def activity(self) -> str:
        """What is going on there, as far as Modal says it: a line of the image's build, or its queue."""
        if self._connection.runner is None:
            last = self._connection.build_log.last
            return f"image: {last}" if last else ""
        return self._connection.queue

    def _open(self, *, warm: bool = False) -> None:
        """Open the connection, if it is not open."""
        self._connection.open(warm=warm)
        if self._connection.warm:
            self._meter.idle_s = WARM_S

    def cost(self) -> Cost:
        """Return the estimated cost so far."""
        outlives = self.options.deployed_app is not None or self._connection.warm
        return replace(self._meter.cost(), idle_s=self._meter.idle_s if outlives else 0.0)

    def execute(self, program: PythonProgram, *, on_output: OnOutput) -> int:
        """Run a program in a container; see `ProgramRemote`."""
        self._open()
        run = ProgramRun(self._connection, self._meter, self.options, status=lambda: self.status().summary)
        # A backend without a worker process runs jobs only; its programs run without a device.
        backend = self.settings.backend if self.settings.backend in BACKENDS else "cuda"
        return run.to_end(program, backend=backend, code=self._code, on_output=on_output)

    # Coroutines, in the connection's thread

    async def _spawn(self, batches: Sequence[Batch], texts: Sequence[bytes]) -> list[Any]:
        async def spawn(batch: Batch, text: bytes) -> Any:
            modal_call = await self._connection.runner.batch.spawn.aio(text)
            if self.on_call is not None:
                self.on_call(batch, modal_call.object_id)
            return modal_call

        doing = "sending jobs"
        sending = asyncio.gather(*map(spawn, batches, texts))
        try:
            await self._connection.liveness.while_silent(sending, doing)
            return list(await sending)
        except RemoteError:
            raise
        except Exception as error:
            raise self._connection.explained(error, doing) from error
        finally:
            abandon(sending)

    async def _watch(self, call: RemoteCall, modal_call: Any, app: str) -> None:
        """Wait for the end of a call, of another session's app if one is named, and queue its end."""
        doing = "waiting for a job"
        getting = asyncio.ensure_future(self._get(modal_call, doing, app))
        try:
            await self._connection.liveness.while_silent(getting, doing)
            ended = call.ended(result=await getting)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # Modal's client re-raises even a SystemExit of the container
            ended = call.ended(error=self._connection.explained(error, doing, of_call=True))
        finally:
            abandon(getting)
        try:
            self._count(ended)
        finally:
            self._watchers.pop(call.id, None)
            self._ended.put(ended)

    def _count(self, ended: RemoteCall) -> None:
        """Count the cost of an ended call: what the server reports, and no less than that what the container does."""
        # After a network or login error the call continues: it stays open, to be cancelled at the end.
        continues = ended.error is not None and ended.error.kind in ("network", "login")
        run = None if continues else self._connection.tracker.ended(ended.id)
        if (result := ended.result) is not None:
            busy_s = result.busy_s if run is None else max(result.busy_s, run.seconds)
            # The server's name of the container: code that controls a container could give many.
            place = result.place if run is None else result.place.model_copy(update={"container": run.container})
            self._meter.ended(ended.id, place=place, busy_s=busy_s)
        elif run is not None:
            self._meter.ended(ended.id, place=Place(container=run.container), busy_s=run.seconds)
        else:
            self._meter.ended(ended.id)

    async def _get(self, modal_call: Any, doing: str, app: str) -> BatchResult:
        """Return the result of a call. The server stores it, so a failed request is repeated and the call is not."""
        until, damaged = None, 0
        while True:
            try:
                data = await modal_call.get.aio(timeout=timeouts.ATTACHED_S if app else timeouts.POLL_S)
                return read_response(data, options=self.options, settings=self.settings)
            except Exception as error:
                if type(error).__name__ == "TimeoutError":  # there is no result yet
                    if app and await self._connection.has_ended(app):
                        raise RemoteError("lost", "the app of this call has ended", "run it again") from None
                    until = None
                    continue
                explained, now = self._connection.explained(error, doing, of_call=True), time.monotonic()
                until = until or now + timeouts.OUTAGE_S
                damaged += is_damaged(error)
                retry = damaged < _MAX_DAMAGED if is_damaged(error) else explained.kind == "network" and now < until
                if not retry:
                    raise explained from error
            await asyncio.sleep(_POLL_S)

"""The ``modal`` remote: batches go to containers of an app of ours, one call each, and come back as they are done."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from pytest_nvfp4.device.remote.base import (
    Answer,
    Arrival,
    Batch,
    Cost,
    Execution,
    Handle,
    Place,
    RemoteError,
    RemoteOptions,
    RemoteStatus,
    dollars,
)
from pytest_nvfp4.device.remote.far import WORKERS
from pytest_nvfp4.device.remote.modal import patience
from pytest_nvfp4.device.remote.modal.answers import read
from pytest_nvfp4.device.remote.modal.connection import Connection
from pytest_nvfp4.device.remote.modal.cost import Meter, price
from pytest_nvfp4.device.remote.modal.errors import is_damaged, silent
from pytest_nvfp4.device.remote.modal.loop import abandon
from pytest_nvfp4.device.remote.modal.settings import ModalSettings
from pytest_nvfp4.device.remote.wire import pack_batch, squeeze

_EXECUTE = "execute"
_TURN_S = 0.5
_DAMAGED = 3
"""How often an answer may come that cannot be read, before it is given up."""


class ModalRemote:
    """Containers on Modal with a GPU each.

    Args:
        options: What the user asked for.
    """

    name = "modal"

    def __init__(self, options: RemoteOptions) -> None:
        if options.target:
            raise RemoteError(
                "setup",
                f"--nvfp4-remote=modal:{options.target}: modal takes no target",
                "name a deployed app with --nvfp4-deployed-app",
            )
        self.options = options
        self.settings = ModalSettings.of(options)
        self._meter = Meter(options.gpu, options.containers)
        self._connection = Connection(options, self.settings, none_up=self._meter.none_up)
        self._arrivals: queue.Queue[Arrival] = queue.Queue()
        self._watchers: dict[str, concurrent.futures.Future[None]] = {}

    @property
    def kept_as(self) -> str:
        """Under which name answers are kept, so that a simulator's is never taken for a GPU's."""
        return "" if self.settings.backend == "cuda" else f" backend {self.settings.backend}"

    def describe(self) -> str:
        """What it is, in a line."""
        usd = price(self.options.gpu)
        money = "" if usd is None else f", about ${usd:.2f} an hour each"
        device = self.options.gpu
        if self.settings.backend != "cuda":
            device = f"no GPU but the backend {self.settings.backend!r}"
        app = f"deployed app {self.options.deployed_app}" if self.options.deployed_app else "an app of the session"
        several = "" if self.options.containers == 1 else f", up to {self.options.containers} at once"
        return f"modal: {device}{money}{several}; {app}"

    def submit(self, batches: Sequence[Batch]) -> list[Handle]:
        """Send batches; the first time, connect and start the app."""
        self._connection.open()
        backend = self.settings.backend
        texts = [squeeze(pack_batch(batch.model_copy(update={"backend": backend}))) for batch in batches]
        try:
            # The client gives up after the same time: a little more, so that its reason is told and not only ours.
            most_s = self.options.timeout_s + patience.SENT_S
            calls = self._connection.run(self._spawn(texts), timeout_s=most_s)
        except concurrent.futures.TimeoutError:
            raise silent(self.options.timeout_s, doing="sending jobs") from None
        except concurrent.futures.CancelledError as error:
            raise self._connection.explained(error, "sending jobs") from None
        handles = []
        for batch, call in zip(batches, calls, strict=True):
            handle = Handle(batch, call.object_id)
            self._connection.overheard.begin(handle.call, "batch")  # it may have been heard already
            self._meter.sent(handle.call)
            self._watchers[handle.call] = self._connection.start(self._watch(handle, call))
            handles.append(handle)
        return handles

    def collect(self, handles: Sequence[Handle], *, timeout_s: float) -> Iterator[Arrival]:
        """The ends of calls as they arrive."""
        wanted = {handle.call for handle in handles}
        until = time.monotonic() + timeout_s
        while wanted:
            try:
                arrival = self._arrivals.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if arrival.handle.call in wanted:
                wanted.discard(arrival.handle.call)
                yield arrival

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Cancel calls; a container that is in the middle of one stops the kernel's process and takes the next."""
        for handle in handles:
            if (watcher := self._watchers.pop(handle.call, None)) is not None:
                watcher.cancel()
            self._meter.ended(handle.call)
        begun = set(self._connection.overheard.open())
        if names := [handle.call for handle in handles if handle.call in begun]:
            with contextlib.suppress(Exception, concurrent.futures.CancelledError):
                self._connection.run(self._connection.cancel(names), timeout_s=patience.CANCEL_S)

    def status(self) -> RemoteStatus:
        """How the app stands."""
        details = {"gpu": self.options.gpu, "image": self.settings.label}
        try:
            self._connection.open()
            asking = self._connection.runner.batch.get_current_stats.aio()
            stats = self._connection.run(asking, timeout_s=patience.STATUS_S)
        except RemoteError as error:
            return RemoteStatus(False, str(error), None, details)
        except concurrent.futures.TimeoutError:
            words = f"Modal's server did not answer within {patience.STATUS_S:.0f} s"
            return RemoteStatus(False, words, None, details)
        except Exception as error:
            words = str(self._connection.explained(error, "asking for its state"))
            return RemoteStatus(True, words, None, details)
        if stats.num_total_runners == 0:
            self._meter.none_up()
        words = f"{stats.num_total_runners} containers, {stats.backlog} jobs wait for one"
        return RemoteStatus(True, words, int(stats.num_total_runners), details)

    def warm(self) -> None:
        """Start a container and wait until it has answered."""
        from pytest_nvfp4.device.job import Job

        probe = Batch(jobs=(Job(id="warm", action="probe", deadline_s=120),), capability=self.settings.capability)
        handles = self.submit([probe])
        for arrival in self.collect(handles, timeout_s=self.options.timeout_s):
            if arrival.error is not None:
                raise arrival.error
            assert arrival.answer is not None
            (result,) = arrival.answer.results
            if result.status != "passed":
                raise RemoteError("far", f"the container cannot be used: {result.reason}")
            return
        self.cancel(handles)
        raise RemoteError(
            "capacity", f"no container was ready within {self.options.timeout_s:.0f} s", "allow more time, or try later"
        )

    def stop(self) -> None:
        """Cancel what has not ended, end the app of the session and close the connection.

        A deployed app keeps running; idle, it costs nothing.
        """
        self._connection.close()

    def cost(self) -> Cost:
        """What it has cost so far, estimated."""
        return self._meter.cost()

    def execute(self, program: Execution, *, on_output: Callable[[Literal["stdout", "stderr"], bytes], None]) -> int:
        """Run a program in a container; see ``Executes``."""
        from pytest_nvfp4.device.remote.program import pack_program, unpack_output

        self._connection.open()
        parts: queue.Queue[str | BaseException | None] = queue.Queue()
        call, running, status = f"{_EXECUTE}-{time.monotonic_ns()}", "", None
        self._meter.sent(call)
        future = self._connection.start(self._stream(pack_program(program, backend=self._program_backend()), parts))
        until, begun = time.monotonic() + self.options.timeout_s, False
        try:
            while status is None:
                self._watch_over(until, begun=begun)
                try:
                    part = parts.get(timeout=max(0.0, min(_TURN_S, until - time.monotonic())))
                except queue.Empty:
                    continue
                if part is None:
                    raise RemoteError("lost", "the program's end was not reported", "run it again")
                if isinstance(part, BaseException):
                    raise self._connection.explained(part, "running a program")
                said = unpack_output(part)
                if not begun:  # its first piece comes when it begins; until then it has waited for a container
                    until, begun = time.monotonic() + program.deadline_s + patience.PROGRAM_S, True
                running = running or said.call
                status = said.status
                if status is None:
                    on_output(said.stream, said.data)
            return status
        finally:
            if status is None:  # of a deployed app, nothing else would end it before its own deadline
                self._cancel_execution(running)
            future.cancel()
            self._meter.ended(call)
            for name in self._connection.overheard.open(method=_EXECUTE) if status is not None else ():
                self._connection.overheard.ended(name)

    def _watch_over(self, until: float, *, begun: bool) -> None:
        """While a program runs, or waits to: is it too late, or too expensive? Raises RemoteError."""
        if time.monotonic() >= until and begun:
            raise RemoteError("lost", "the program's end was not reported within its time", "run it again")
        if time.monotonic() >= until:
            words = f"the program did not begin within {self.options.timeout_s:.0f} s ({self.status().words})"
            raise RemoteError("capacity", words, "allow more with --remote-timeout, or try later")
        most, usd = self.options.max_cost, self._meter.cost().usd
        if most is not None and usd is not None and usd >= most:
            raise RemoteError("cost", f"the program was stopped: it has cost about {dollars(usd)}", "raise --max-cost")

    def _cancel_execution(self, running: str) -> None:
        """Cancel the program's call, by the name that was heard when it was sent or that its first piece told."""

        async def cancel() -> None:
            await self._connection.overheard.sent(timeout_s=patience.SENT_S)
            heard = self._connection.overheard.open(method=_EXECUTE)
            await self._connection.cancel(heard or [running] if heard or running else [])

        with contextlib.suppress(Exception, concurrent.futures.CancelledError):
            self._connection.run(cancel(), timeout_s=patience.CANCEL_S)

    def _program_backend(self) -> str:
        """What a program's ``device="cuda"`` is; a backend that only does jobs runs programs without a device."""
        return self.settings.backend if self.settings.backend in WORKERS else "cuda"

    # calls, within the connection's thread

    async def _spawn(self, texts: Sequence[bytes]) -> list[Any]:
        async def one(text: bytes) -> Any:
            return await self._connection.runner.batch.spawn.aio(text)

        doing = "sending jobs"
        sending = asyncio.gather(*(one(text) for text in texts))
        try:
            await self._connection.while_silent(sending, doing)
            return list(await sending)
        except RemoteError:
            raise
        except Exception as error:
            raise self._connection.explained(error, doing) from error
        finally:
            abandon(sending)

    async def _watch(self, handle: Handle, call: Any) -> None:
        """Wait for a call's end and say what it was."""
        doing = "waiting for a job"
        getting = asyncio.ensure_future(self._get(call, doing))
        try:
            await self._connection.while_silent(getting, doing)
            arrival = Arrival(handle, answer=await getting)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # SystemExit of the far side arrives as such
            arrival = Arrival(handle, error=self._connection.explained(error, doing))
        finally:
            abandon(getting)
        # With the connection or the token gone, the call goes on: it stays among what is to be cancelled at the end.
        goes_on = arrival.error is not None and arrival.error.trouble in ("network", "login")
        ran = None if goes_on else self._connection.overheard.ended(handle.call)
        if (answer := arrival.answer) is not None:
            self._meter.ended(handle.call, place=answer.place, busy_s=answer.busy_s)
        else:
            self._meter.ended(
                handle.call,
                place=None if ran is None else Place(container=ran.container),
                busy_s=ran.seconds if ran else 0.0,
            )
        self._watchers.pop(handle.call, None)
        self._arrivals.put(arrival)

    async def _get(self, call: Any, doing: str) -> Answer:
        """A call's answer. The server keeps it: where it cannot be had yet, it is asked for again, not run again."""
        until, damaged = None, 0
        while True:
            try:
                data = await call.get.aio(timeout=patience.POLL_S)
                return read(data, options=self.options, settings=self.settings)
            except Exception as error:
                if type(error).__name__ == "TimeoutError":  # there is none yet
                    until = None
                    continue
                said, now = self._connection.explained(error, doing), time.monotonic()
                until = until or now + patience.OUTAGE_S
                damaged += is_damaged(error)
                again = damaged < _DAMAGED if is_damaged(error) else said.trouble == "network" and now < until
                if not again:
                    raise said from error
            await asyncio.sleep(_TURN_S)

    async def _stream(self, text: str, parts: queue.Queue[str | BaseException | None]) -> None:
        pieces = aiter(self._connection.stream_of(text))
        try:
            while True:
                getting = asyncio.ensure_future(anext(pieces))
                try:
                    await self._connection.while_silent(getting, "running a program")
                    parts.put(await getting)
                except StopAsyncIteration:
                    break
                finally:
                    abandon(getting)
            parts.put(None)
        except BaseException as error:
            parts.put(error)
            if isinstance(error, asyncio.CancelledError):
                raise

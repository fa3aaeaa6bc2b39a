"""The ``modal`` remote: batches go to containers of an app of ours, one call each, and come back as they are done.

Nothing is imported from Modal's client and nothing is contacted before the first batch. Every call has a deadline of
our own: a server that accepts connections and never answers would otherwise be waited for without end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import queue
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal

from pytest_nvfp4.device.remote.base import (
    Answer,
    Arrival,
    Batch,
    Cost,
    Execution,
    Handle,
    RemoteError,
    RemoteOptions,
    RemoteStatus,
)
from pytest_nvfp4.device.remote.far import WORKERS
from pytest_nvfp4.device.remote.modal.cost import Meter, price
from pytest_nvfp4.device.remote.modal.errors import DEPLOY, explain, silent
from pytest_nvfp4.device.remote.modal.login import Login, find_login, knock
from pytest_nvfp4.device.remote.modal.loop import LoopThread
from pytest_nvfp4.device.remote.modal.no_pickle import refuse_pickles
from pytest_nvfp4.device.remote.modal.settings import BACKEND_VARIABLE, ModalSettings, other_versions
from pytest_nvfp4.device.remote.wire import pack_batch, squeeze, unpack_answer, unsqueeze
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.toolchain.trace import Finding

_LOGGERS = ("modal-client", "modal-utils", "hpack", "hpack.hpack", "hpack.table")
"""Loggers of the client. What goes wrong is said by us, once; they would tell it again, with their tracebacks. HPACK's
would tell every header of a request, the token among them, to whoever logs at DEBUG (``pytest --log-level=DEBUG``).
"""
_QUIET_S = 15.0
"""Seconds without word from the server after which it is asked for a sign of life."""
_SIGN_S = 10.0
_CONNECT_S = 15.0
_CANCEL_S = 5.0
_NAME_S = 2.0
_STOP_S = 10.0
_STATUS_S = 8.0


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
        self._arrivals: queue.Queue[Arrival] = queue.Queue()
        self._calls: dict[str, Any] = {}
        self._watchers: dict[str, concurrent.futures.Future[None]] = {}
        self._loop: LoopThread | None = None
        self._login: Login | None = None
        self._client: Any = None
        self._runner: Any = None
        self._service: Any = None
        self._leave: asyncio.Event | None = None
        self._session: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._stopped = False

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
        loop = self._ready()
        backend = self.settings.backend
        texts = [squeeze(pack_batch(batch.model_copy(update={"backend": backend}))) for batch in batches]
        try:
            calls = loop.run(self._spawn(texts), timeout_s=self.options.timeout_s)
        except concurrent.futures.TimeoutError:
            raise silent(self.options.timeout_s, doing="sending jobs") from None
        handles = []
        for batch, call in zip(batches, calls, strict=True):
            handle = Handle(batch, call.object_id)
            self._calls[handle.call] = call
            self._meter.sent(handle.call)
            self._watchers[handle.call] = loop.start(self._watch(handle, call))
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
        loop = self._loop
        if loop is None:
            return
        calls = []
        for handle in handles:
            call = self._calls.pop(handle.call, None)
            if (watcher := self._watchers.pop(handle.call, None)) is not None:
                watcher.cancel()
            self._meter.ended(handle.call)
            if call is not None:
                calls.append(call)
        with contextlib.suppress(Exception):
            loop.run(self._cancel(calls), timeout_s=_CANCEL_S)

    def status(self) -> RemoteStatus:
        """How the app stands."""
        details = {"gpu": self.options.gpu, "image": self.settings.label}
        try:
            loop = self._ready()
            stats = loop.run(self._service.get_current_stats.aio(), timeout_s=_STATUS_S)
        except RemoteError as error:
            return RemoteStatus(False, str(error), None, details)
        except concurrent.futures.TimeoutError:
            return RemoteStatus(False, f"Modal's server did not answer within {_STATUS_S:.0f} s", None, details)
        except Exception as error:
            return RemoteStatus(True, str(self._explained(error, "asking for its state")), None, details)
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
        """End the app of the session and close the connection. A deployed app keeps running; idle, it costs nothing."""
        with self._lock:
            loop, self._loop, self._stopped = self._loop, None, True
        if loop is None:
            return
        with contextlib.suppress(Exception):
            loop.run(self._close(), timeout_s=_STOP_S)
        loop.close()

    def cost(self) -> Cost:
        """What it has cost so far, estimated."""
        return self._meter.cost()

    def execute(self, program: Execution, *, on_output: Callable[[Literal["stdout", "stderr"], bytes], None]) -> int:
        """Run a program in a container; see ``Executes``."""
        from pytest_nvfp4.device.remote.program import pack_program, unpack_output

        loop = self._ready()
        parts: queue.Queue[str | BaseException | None] = queue.Queue()
        call, running = f"execute-{time.monotonic_ns()}", ""
        self._meter.sent(call)
        future = loop.start(self._stream(pack_program(program, backend=self._program_backend()), parts))
        until = time.monotonic() + self.options.timeout_s + program.deadline_s
        try:
            while True:
                try:
                    part = parts.get(timeout=max(0.0, min(1.0, until - time.monotonic())))
                except queue.Empty:
                    if time.monotonic() >= until:
                        raise silent(self.options.timeout_s, doing="running a program") from None
                    continue
                if part is None:
                    raise RemoteError("lost", "the program's end was not reported", "run it again")
                if isinstance(part, BaseException):
                    raise self._explained(part, "running a program")
                said = unpack_output(part)
                if said.status is not None:
                    running = ""
                    return said.status
                running = running or said.call
                on_output(said.stream, said.data)
        except KeyboardInterrupt:
            running = running or _name_of(parts)
            raise
        finally:
            if running:  # of a deployed app, nothing else would end it before its own deadline
                with contextlib.suppress(Exception):
                    loop.run(self._cancel_by_name(running), timeout_s=_CANCEL_S)
            future.cancel()
            self._meter.ended(call)

    def _program_backend(self) -> str:
        """What a program's ``device="cuda"`` is; a backend that only does jobs runs programs without a device."""
        return self.settings.backend if self.settings.backend in WORKERS else "cuda"

    # connecting

    def _ready(self) -> LoopThread:
        with self._lock:
            if self._stopped:
                raise RemoteError("cancelled", "the session on Modal has ended")
            if self._loop is not None and self._runner is not None:
                return self._loop
        login = find_login()
        knock(login.server)
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._login = login
        loop = self._loop = LoopThread("nvfp4-modal")
        try:
            self._client = loop.run(self._connect(login), timeout_s=_CONNECT_S)
        except concurrent.futures.TimeoutError:
            raise silent(_CONNECT_S, doing="connecting") from None
        except Exception as error:
            raise self._explained(error, "connecting") from error
        self._wait_open(loop, self._open_app())
        return loop

    async def _connect(self, login: Login) -> Any:
        import modal

        # An own client: the one of the environment is shared with whatever else uses Modal in this process.
        client = await modal.Client.from_credentials.aio(login.token_id, login.token_secret)
        refuse_pickles(client)
        return client

    def _wait_open(self, loop: LoopThread, opening: Any) -> None:
        """Wait for the app. An image may take minutes to build; a server that has died is noticed long before."""
        doing = "starting the app"
        opened: concurrent.futures.Future[None] = loop.start(opening)
        until = time.monotonic() + self.options.timeout_s
        try:
            while True:
                try:
                    opened.result(min(_QUIET_S, max(0.0, until - time.monotonic())))
                    return
                except concurrent.futures.TimeoutError:
                    if opened.done():
                        raise
                    if time.monotonic() >= until:
                        raise RemoteError(
                            "image",
                            f"the app was not ready within {self.options.timeout_s:.0f} s (--nvfp4-remote-timeout)",
                            "an image is built once and kept: allow more time, or deploy the app ahead of the session",
                        ) from None
                    loop.run(self._sign_of_life(doing), timeout_s=_SIGN_S + 1)
        except RemoteError:
            raise
        except BaseException as error:
            raise self._explained(error, doing) from error
        finally:
            opened.cancel()

    async def _open_app(self) -> None:
        import modal

        if self.options.deployed_app:
            runner = modal.Cls.from_name(self.options.deployed_app, "Runner", client=self._client)
            try:
                await runner.hydrate.aio()
            except modal.exception.NotFoundError as error:
                raise RemoteError(
                    "setup", f"no app {self.options.deployed_app!r} is deployed on Modal", DEPLOY
                ) from error
            self._runner = runner()
            self._service = self._runner.batch
            return
        from pytest_nvfp4.device.remote.modal.build import make_app

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            app, runner = make_app(self.settings)
        running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._session = asyncio.create_task(self._run_app(app, running, self._leave))
        await running
        self._runner = runner()
        self._service = self._runner.batch

    async def _run_app(self, app: Any, running: asyncio.Future[None], leave: asyncio.Event) -> None:
        """The app, entered and left by one task, for as long as the session lasts."""
        try:
            async with app.run(client=self._client):
                running.set_result(None)
                await leave.wait()
        except BaseException as error:
            if not running.done():
                running.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _close(self) -> None:
        if self._leave is not None and self._session is not None:
            self._leave.set()
            with contextlib.suppress(Exception):
                await _bounded(self._session, _STOP_S / 2)
        if self._client is not None:
            with contextlib.suppress(Exception):
                await _bounded(asyncio.ensure_future(self._client._close.aio()), _STOP_S / 4)

    # calls

    async def _spawn(self, texts: Sequence[bytes]) -> list[Any]:
        async def one(text: bytes) -> Any:
            return await self._runner.batch.spawn.aio(text)

        doing = "sending jobs"
        sending = asyncio.gather(*(one(text) for text in texts))
        try:
            async for _ in self._while_silent(sending, doing):
                pass
            return list(await sending)
        except RemoteError:
            sending.cancel()
            raise
        except Exception as error:
            raise self._explained(error, doing) from error

    async def _watch(self, handle: Handle, call: Any) -> None:
        """Wait for a call's end and say what it was."""
        doing = "waiting for a job"
        getting = asyncio.ensure_future(call.get.aio())
        try:
            async for _ in self._while_silent(getting, doing):
                pass
            arrival = self._read(handle, await getting)
        except asyncio.CancelledError:
            getting.cancel()
            raise
        except RemoteError as error:
            getting.cancel()
            arrival = Arrival(handle, error=error)
        except BaseException as error:  # SystemExit of the far side arrives as such
            arrival = Arrival(handle, error=self._explained(error, doing))
        answer = arrival.answer
        if answer is None:
            self._meter.ended(handle.call)
        else:
            self._meter.ended(handle.call, place=answer.place, busy_s=answer.busy_s)
        self._calls.pop(handle.call, None)
        self._watchers.pop(handle.call, None)
        self._arrivals.put(arrival)

    def _read(self, handle: Handle, data: Any) -> Arrival:
        text = unsqueeze(data)
        try:
            said = json.loads(text) if text.startswith('{"trouble"') else None
        except ValueError:
            said = None
        if isinstance(said, dict):
            return Arrival(
                handle, error=RemoteError(said.get("trouble", "far"), str(said.get("what")), str(said.get("do")))
            )
        answer = self._honest(unpack_answer(text))
        if self.options.deployed_app and (other := other_versions(answer.place.versions)):
            raise RemoteError("version", f"the deployed app {self.options.deployed_app!r} has {other}", DEPLOY)
        place = answer.place.model_copy(update={"image": answer.place.image or self.settings.label})
        return Arrival(handle, answer=answer.model_copy(update={"place": place}))

    def _honest(self, answer: Answer) -> Answer:
        """The answer, in which no simulator passes as a GPU: one that nobody asked for has answered nothing."""
        if self.settings.backend != "cuda":
            return answer
        results = []
        for result in answer.results:
            if result.device is not None and result.device.simulated:
                finding = Finding(
                    kind="device",
                    message=f"the container answered from a {result.device}, and a real {self.options.gpu} was asked "
                    f"for: the answer is not taken ({BACKEND_VARIABLE}=sim asks for a simulator)",
                )
                results.append(Result(job=result.job, status="unsupported", device=result.device, findings=(finding,)))
            else:
                results.append(result)
        return answer.model_copy(update={"results": tuple(results)})

    async def _cancel(self, calls: Sequence[Any]) -> None:
        await asyncio.gather(*(call.cancel.aio() for call in calls), return_exceptions=True)

    async def _cancel_by_name(self, call: str) -> None:
        import modal

        await modal.FunctionCall.from_id(call, client=self._client).cancel.aio()

    async def _stream(self, text: str, parts: queue.Queue[str | BaseException | None]) -> None:
        try:
            async for part in self._runner.execute.remote_gen.aio(text):
                parts.put(part)
            parts.put(None)
        except BaseException as error:
            parts.put(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    # signs of life

    async def _while_silent(self, future: asyncio.Future[Any], doing: str) -> AsyncIterator[None]:
        """Until a future is done, ask the server for a sign of life whenever it has been quiet for a while."""
        while True:
            done, _ = await asyncio.wait([future], timeout=_QUIET_S)
            if done:
                return
            await self._sign_of_life(doing)
            yield

    async def _sign_of_life(self, doing: str) -> None:
        """Any answer will do, a refusal too. Raises RemoteError."""
        import modal

        try:
            await asyncio.wait_for(self._client.hello.aio(), _SIGN_S)
        except (TimeoutError, concurrent.futures.TimeoutError):
            raise silent(_QUIET_S + _SIGN_S, doing=doing) from None
        except (
            modal.exception.ConnectionError,
            modal.exception.ClientClosed,
            modal.exception.AuthError,
            OSError,
        ) as error:
            raise self._explained(error, doing) from error
        except Exception:
            return

    def _explained(self, error: BaseException, doing: str) -> RemoteError:
        return explain(error, doing=doing, secrets=self._login.secrets if self._login is not None else ())


def _name_of(parts: queue.Queue[str | BaseException | None]) -> str:
    """The name of a call that has begun and whose first piece is under way; empty if none comes soon."""
    from pytest_nvfp4.device.remote.program import unpack_output

    with contextlib.suppress(queue.Empty):
        part = parts.get(timeout=_NAME_S)
        return unpack_output(part).call if isinstance(part, str) else ""
    return ""


async def _bounded(future: asyncio.Future[Any], seconds: float) -> None:
    """Wait for something, and not for its cancellation, which may take as long as the client tries to connect.

    Raises:
        TimeoutError: it was not done in time.
    """
    done, _ = await asyncio.wait([future], timeout=seconds)
    if not done:
        future.cancel()
        raise TimeoutError
    await future

"""A connection to Modal and the app that calls go to: opened with the first call, closed with the session.

Nothing is imported from Modal's client and nothing is contacted before. Every wait has a deadline of our own: a server
that accepts connections and never answers would otherwise be waited for without end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from pytest_nvfp4.device.remote.base import RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.modal import patience
from pytest_nvfp4.device.remote.modal.errors import DEPLOY, explain, gone, silent
from pytest_nvfp4.device.remote.modal.login import Login, find_login, knock
from pytest_nvfp4.device.remote.modal.loop import LoopThread, abandon
from pytest_nvfp4.device.remote.modal.no_pickle import refuse_pickles
from pytest_nvfp4.device.remote.modal.overheard import Overheard, keep_to_calls
from pytest_nvfp4.device.remote.modal.settings import ModalSettings
from pytest_nvfp4.device.remote.modal.warned import only_warn

T = TypeVar("T")
_LOGGERS = ("modal-client", "modal-utils", "hpack", "hpack.hpack", "hpack.table")
"""Loggers of the client. What goes wrong is said by us, once; they would tell it again, with their tracebacks. HPACK's
would tell every header of a request, the token among them, to whoever logs at DEBUG (``pytest --log-level=DEBUG``).
"""
_TURN_S = 0.5


class Connection:
    """A client of our own, and an app: one of the session, or one that was deployed.

    Args:
        options: What the user asked for.
        settings: What an app of the session is made of.
        none_up: Is called while something is waited for and the app has no container.

    Attributes:
        runner: The app's class, once it is open.
        overheard: Calls that were begun and have not ended, and where others ran.
    """

    def __init__(self, options: RemoteOptions, settings: ModalSettings, *, none_up: Callable[[], None]) -> None:
        self.runner: Any = None
        self.overheard = Overheard(most_s=options.timeout_s)
        self._options = options
        self._settings = settings
        self._none_up = none_up
        self._loop: LoopThread | None = None
        self._login: Login | None = None
        self._client: Any = None
        self._leave: asyncio.Event | None = None
        self._session: asyncio.Task[None] | None = None
        self._heard = 0.0
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is something to be closed."""
        return self._loop is not None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin something over the open connection."""
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise _ended()
        return loop.start(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Do something over the open connection. Raises TimeoutError, and whatever it raises."""
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise _ended()
        return loop.run(coroutine, timeout_s=timeout_s)

    def explained(self, error: BaseException, doing: str) -> RemoteError:
        """An error in words, without secrets."""
        if self._closed:  # whatever it is, it came of that
            return _ended()
        return explain(
            error,
            doing=doing,
            secrets=self._login.secrets if self._login is not None else (),
            deployed=self._options.deployed_app is not None,
        )

    # opening

    def open(self) -> None:
        """Connect and have an app ready; once. Raises RemoteError."""
        with self._lock:
            if self._closed:
                raise _ended()
            if self.runner is not None:
                return
        self._login = find_login()
        knock(self._login.server)
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with self._lock:
            if self._closed:
                raise _ended()
            loop = self._loop = LoopThread("nvfp4-modal")
        try:
            self._connect(loop, self._login)
            self._wait_open(loop)
        except BaseException:
            if self._session is None:  # there is no app to leave
                self._shut()
            raise

    def _connect(self, loop: LoopThread, login: Login) -> None:
        async def connect() -> Any:
            import modal

            only_warn()
            # An own client: the one of the environment is shared with whatever else uses Modal in this process.
            client = await modal.Client.from_credentials.aio(login.token_id, login.token_secret)
            refuse_pickles(client)
            self.overheard.listen(client)
            return client

        try:
            self._client = loop.run(connect(), timeout_s=patience.CONNECT_S)
        except concurrent.futures.TimeoutError:
            raise silent(patience.CONNECT_S, doing="connecting") from None
        except (Exception, concurrent.futures.CancelledError) as error:
            raise self.explained(error, "connecting") from None

    def _wait_open(self, loop: LoopThread) -> None:
        """Wait for the app. An image may take minutes to build; a server that has died is noticed long before."""
        doing = "starting the app"
        opened: concurrent.futures.Future[None] = loop.start(self._open_app())
        until = time.monotonic() + self._options.timeout_s
        try:
            while True:
                try:
                    opened.result(min(patience.QUIET_S, max(0.0, until - time.monotonic())))
                    return
                except concurrent.futures.TimeoutError:
                    if opened.done():
                        raise
                    if time.monotonic() >= until:
                        raise RemoteError(
                            "image",
                            f"the app was not ready within {self._options.timeout_s:.0f} s (--nvfp4-remote-timeout)",
                            "an image is built once and kept: allow more time, or deploy the app ahead of the session",
                        ) from None
                    try:
                        loop.run(self.sign_of_life(doing), timeout_s=2 * patience.SIGN_S + 1)
                    except concurrent.futures.TimeoutError:
                        raise silent(patience.QUIET_S + 2 * patience.SIGN_S, doing=doing) from None
        except RemoteError:
            raise
        except BaseException as error:
            raise self.explained(error, doing) from None
        finally:
            opened.cancel()

    async def _open_app(self) -> None:
        import modal

        if self._options.deployed_app:
            runner = modal.Cls.from_name(self._options.deployed_app, "Runner", client=self._client)
            try:
                await runner.hydrate.aio()
            except modal.exception.NotFoundError as error:
                raise RemoteError(
                    "setup", f"no app {self._options.deployed_app!r} is deployed on Modal", DEPLOY
                ) from error
            self.runner = runner()
            return
        from pytest_nvfp4.device.remote.modal.build import make_app

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            app, runner = make_app(self._settings)
        running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._session = asyncio.create_task(self._run_app(app, running, self._leave))
        await running
        self.runner = runner()

    async def _run_app(self, app: Any, running: asyncio.Future[None], leave: asyncio.Event) -> None:
        """The app, entered and left by one task, for as long as the session lasts."""
        try:
            async with app.run(client=self._client):
                if not running.done():
                    running.set_result(None)
                await leave.wait()
        except BaseException as error:
            if not running.done():
                running.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def stream_of(self, text: str) -> AsyncIterator[str]:
        """Run a program (``Runner.execute``) and give what it says."""
        function = self.runner.execute
        await function.hydrate.aio()
        keep_to_calls(function)
        async for part in function.remote_gen.aio(text):
            yield part

    # signs of life

    async def while_silent(self, future: asyncio.Future[Any], doing: str) -> None:
        """Wait until a future is done; ask the server for a sign of life whenever it has been quiet for a while."""
        while True:
            done, _ = await asyncio.wait([future], timeout=patience.QUIET_S)
            if done:
                return
            if time.monotonic() - self._heard >= patience.QUIET_S / 2:  # of many who wait, one asks
                await self.sign_of_life(doing)
                await self._look()

    async def _look(self) -> None:
        """Is there a container at all? One that is waited for costs nothing."""
        with contextlib.suppress(Exception):
            asking = asyncio.ensure_future(self.runner.batch.get_current_stats.aio())
            await _bounded(asking, patience.STATUS_S)
            if asking.result().num_total_runners == 0:
                self._none_up()

    async def sign_of_life(self, doing: str) -> None:
        """Any answer will do, a refusal too; a connection that broke may be made again. Raises RemoteError."""
        import modal

        until = time.monotonic() + patience.SIGN_S
        while True:
            try:
                await _bounded(asyncio.ensure_future(self._client.hello.aio()), max(0.1, until - time.monotonic()))
                break
            except TimeoutError:
                raise await asyncio.to_thread(self._gone_or_silent, doing) from None
            except (modal.exception.ConnectionError, OSError) as error:
                if time.monotonic() >= until:
                    raise self.explained(error, doing) from None
            except (modal.exception.ClientClosed, modal.exception.AuthError) as error:
                raise self.explained(error, doing) from None
            except Exception:
                break
            await asyncio.sleep(min(_TURN_S, max(0.0, until - time.monotonic())))
        self._heard = time.monotonic()

    def _gone_or_silent(self, doing: str) -> RemoteError:
        """Why nothing was heard: the client tries to connect for so long that its own error does not come in time."""
        try:
            if self._login is not None:
                knock(self._login.server)
        except RemoteError as error:
            return gone(error.what, doing=doing)
        return silent(patience.QUIET_S + patience.SIGN_S, doing=doing)

    # cancelling and closing

    async def cancel(self, names: list[str]) -> None:
        """Cancel calls by their names, those that wait for a container too; what cannot be cancelled is passed over."""
        import modal

        async def one(name: str) -> None:
            method = self.overheard.take(name)
            try:
                await modal.FunctionCall.from_id(name, client=self._client).cancel.aio()
            except BaseException:
                if method is not None:
                    self.overheard.begin(name, method)
                raise

        await asyncio.gather(*map(one, names), return_exceptions=True)

    def close(self) -> None:
        """Cancel what was begun and has not ended, leave the app, close the connection. Bounded; raises nothing.

        May be called by another thread than the one that opens it, which then waits no longer.
        """
        with self._lock:
            self._closed = True
        self._shut()

    def _shut(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        with contextlib.suppress(Exception, concurrent.futures.CancelledError):
            loop.run(self._end(), timeout_s=patience.CANCEL_S + patience.STOP_S)
        loop.close()

    async def _end(self) -> None:
        if self._client is None:
            return
        with contextlib.suppress(Exception):
            await _bounded(asyncio.ensure_future(self._cancel_all()), patience.CANCEL_S)
        if self._leave is not None and self._session is not None:
            self._leave.set()
            if self.runner is None:  # it is being started still: who starts it is told
                self._session.cancel()
            with contextlib.suppress(Exception):
                await _bounded(self._session, patience.STOP_S / 2)
        with contextlib.suppress(Exception):
            close = getattr(self._client, "close", None) or self._client._close  # as it was called in earlier versions
            await _bounded(asyncio.ensure_future(close.aio()), patience.STOP_S / 4)

    async def _cancel_all(self) -> None:
        await self.overheard.sent(timeout_s=patience.SENT_S)
        if names := self.overheard.open():
            await self.cancel(names)


def _ended() -> RemoteError:
    return RemoteError("cancelled", "the session on Modal has ended")


async def _bounded(future: asyncio.Future[Any], seconds: float) -> None:
    """Wait for something, and not for its cancellation, which may take as long as the client tries to connect.

    Raises:
        TimeoutError: it was not done in time.
    """
    done, _ = await asyncio.wait([future], timeout=seconds)
    if not done:
        abandon(future)
        raise TimeoutError
    await future

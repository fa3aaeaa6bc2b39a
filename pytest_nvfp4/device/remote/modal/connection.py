"""Connection to Modal and the app that receives the calls: opened by the first call, closed with the session.

Before it is opened, nothing is imported from Modal's client and nothing is contacted. Every wait has a timeout of its
own, because Modal's client (1.6) waits forever for a server that accepts connections and never responds.
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
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.apps import (
    WARM,
    FoundApp,
    UsedApp,
    end_apps,
    live_apps,
    running_apps,
    shared_settings,
    stop_app,
    warm_name,
)
from pytest_nvfp4.device.remote.modal.build_log import BuildLog
from pytest_nvfp4.device.remote.modal.call_tracker import CallTracker, disable_attempts
from pytest_nvfp4.device.remote.modal.errors import DEPLOY, clean, explain, silent
from pytest_nvfp4.device.remote.modal.liveness import Liveness, bounded
from pytest_nvfp4.device.remote.modal.login import Login, check_reachable, find_login
from pytest_nvfp4.device.remote.modal.loop import LoopThread
from pytest_nvfp4.device.remote.modal.no_pickle import refuse_pickles
from pytest_nvfp4.device.remote.modal.requests import observe
from pytest_nvfp4.device.remote.modal.server_warnings import log_server_warnings
from pytest_nvfp4.device.remote.modal.settings import SCALEDOWN_S, WARM_S, ModalSettings
from pytest_nvfp4.text import clip, plural, printed

T = TypeVar("T")
_LOGGERS = ("modal-client", "modal-utils", "hpack", "hpack.hpack", "hpack.table")
"""Silenced loggers. Those of Modal's client would repeat reported errors with tracebacks. HPACK's log every header of a
request at DEBUG (``pytest --log-level=DEBUG``), including the token.
"""


class Connection:
    """A client of this package's own, and the app of the session or a deployed one.

    Args:
        options: Options of the remote.
        settings: Settings of an app of the session.
        none_up: Called during a wait if the app has no container.

    Attributes:
        runner: The app's class, once the connection is open.
        tracker: Tracker of the calls.
        liveness: Clock of the server's answers.
        app: The app, as far as it is known; None before the connection is open.
        build_log: Log of the build of the app's image.
        queue: What the server said last about its queue; empty before.
    """

    def __init__(self, options: RemoteOptions, settings: ModalSettings, *, none_up: Callable[[], None]) -> None:
        self.runner: Any = None
        self.tracker = CallTracker(send_timeout_s=options.timeout_s)
        self.liveness = Liveness(explained=self.explained, on_alive=self._check_containers)
        self.app: UsedApp | None = None
        self.build_log = BuildLog()
        self.queue = ""
        self._options = options
        self._settings = settings
        self._none_up = none_up
        self._loop: LoopThread | None = None
        self._login: Login | None = None
        self._client: Any = None
        self._end_app: asyncio.Event | None = None
        self._app_task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._unwanted = False

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine in the connection's thread."""
        return self._open_loop(coroutine).start(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run a coroutine in the connection's thread. Raises TimeoutError, and what the coroutine raises."""
        return self._open_loop(coroutine).run(coroutine, timeout_s=timeout_s)

    def _open_loop(self, coroutine: Coroutine[Any, Any, T]) -> LoopThread:
        loop = self._loop
        if loop is None:
            coroutine.close()  # asyncio warns of a coroutine that is never awaited
            raise _session_ended()
        return loop

    def explained(self, error: BaseException, doing: str, *, of_call: bool = False) -> RemoteError:
        """Convert an error of Modal's client, or of one call; the message contains no secrets."""
        if self._closed:  # the close caused the error
            return _session_ended()
        return explain(
            error,
            doing=doing,
            secrets=self._login.secrets if self._login is not None else (),
            deployed=self._options.deployed_app is not None,
            of_call=of_call,
        )

    # Opening

    def open(self, *, warm: bool = False) -> None:
        """Connect and start the app, once, or the app that outlives the session if it is to be warm.

        Raises:
            RemoteError: There is no connection, or no app.
        """
        with self._lock:
            if self._closed:
                raise _session_ended()
            if self.runner is not None:
                return
        loop = self.connect()
        try:
            self._wait_open(loop, warm=warm)
        except BaseException:
            if self._app_task is None:  # there is no app to end
                self._shut()
            raise

    def connect(self) -> LoopThread:
        """Connect, once, without an app. Raises RemoteError."""
        with self._lock:
            if self._closed:
                raise _session_ended()
            if self._loop is not None:
                return self._loop
        self._login = find_login()
        check_reachable(self._login.server)
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with self._lock:
            if self._closed:
                raise _session_ended()
            loop = self._loop = LoopThread("nvfp4-modal")
        try:
            self._connect(loop, self._login)
        except BaseException:
            self._shut()
            raise
        return loop

    def _connect(self, loop: LoopThread, login: Login) -> None:
        async def connect() -> Any:
            import modal

            log_server_warnings()
            # A client of its own: the one of the environment is shared by everything in this process that uses Modal.
            client = await modal.Client.from_credentials.aio(login.token_id, login.token_secret)
            refuse_pickles(client)
            observe(client, self._observed)
            self.tracker.attach(client)
            self.liveness.attach(client, server=login.server)
            return client

        try:
            self._client = loop.run(connect(), timeout_s=timeouts.CONNECT_S)
        except concurrent.futures.TimeoutError:
            raise silent(timeouts.CONNECT_S, doing="connecting") from None
        except (Exception, concurrent.futures.CancelledError) as error:
            raise self.explained(error, "connecting") from None

    def _observed(self, request_name: str, request: Any, response: Any) -> None:
        """Take what the answer to a request says about the app."""
        self.liveness.answered(request_name)
        if request_name == "AppCreate" and response is not None:
            name = "" if self.app is None else self.app.name
            self.app = UsedApp(printed(clip(response.app_id, 80)), printed(clip(response.app_page_url, 300)), name)
        elif request_name == "AppClientDisconnect" and response is not None and self.app is not None:
            self.app.ended = not self.app.name and request.app_id == self.app.id
        elif request_name == "ImageJoinStreaming":
            self.build_log.add(response)

    def _wait_open(self, loop: LoopThread, *, warm: bool) -> None:
        """Wait for the app. An image may take minutes to build, but a dead server is noticed within seconds."""
        doing = "starting the app"
        opened: concurrent.futures.Future[None] = loop.start(self._open_app(warm=warm))
        until = time.monotonic() + self._options.timeout_s
        try:
            while True:
                try:
                    opened.result(min(timeouts.QUIET_S, max(0.0, until - time.monotonic())))
                    return
                except concurrent.futures.TimeoutError:
                    if opened.done():
                        raise
                    if time.monotonic() >= until:
                        raise RemoteError(
                            "image",
                            f"the app was not ready within {self._options.timeout_s:.0f} s (--nvfp4-remote-timeout)",
                            "raise it (an image is built once and cached), or deploy the app before the session",
                        ) from None
                    try:
                        longest_s = timeouts.SILENT_S + 2 * timeouts.SIGN_S
                        loop.run(self.liveness.sign_of_life(doing), timeout_s=longest_s)
                    except concurrent.futures.TimeoutError:
                        raise silent(longest_s, doing=doing) from None
        except RemoteError:
            raise
        except BaseException as error:
            explained = self.explained(error, doing)
            if explained.kind == "image" and (tail := self.build_log.tail):
                log = clean("\n    ".join(["", *tail]), self._login.secrets if self._login is not None else ())
                problem = f"{explained.problem}\n  the end of its build log:\n    {log}"
                explained = RemoteError("image", problem, explained.remedy)
            raise explained from None
        finally:
            opened.cancel()

    async def _open_app(self, *, warm: bool) -> None:
        from pytest_nvfp4.device.remote.modal.build import make_app

        name = self._options.deployed_app
        if name is not None:
            self.runner = await self._deployed(name)
            if self.runner is None:
                raise RemoteError("setup", f"no app {name!r} is deployed on Modal", DEPLOY)
            return
        name = warm_name(self._settings)
        if not self._settings.single_use:  # no container of such an app serves two batches, so none can be warm
            self.runner = await self._warmed(name)
        if self.runner is not None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings, idle_s = (shared_settings(self._settings), WARM_S) if warm else (self._settings, SCALEDOWN_S)
            app, runner = make_app(settings, idle_s=idle_s)
        try:
            if warm:
                self.app, self._unwanted = UsedApp(name=name), True
                await app.deploy.aio(name=name, client=self._client)
                self.runner = await self._deployed(name)
                if self.runner is None:
                    raise RemoteError("remote", f"the app {name} was deployed and is not there", "try again")
                self._unwanted = False
                return
            running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._end_app = asyncio.Event()
            self._app_task = asyncio.create_task(self._run_app(app, running, self._end_app))
            await running
        except Exception as error:
            if (image := getattr(error, "image_id", None)) and not self.build_log.tail:
                await self.build_log.fetch(self._client, image)
            raise
        self.runner = runner()

    async def _warmed(self, name: str) -> Any:
        """Return the class of a warmed app; None if there is none or nothing is known of it: another app serves too."""
        import modal

        lookup = asyncio.ensure_future(self._deployed(name))
        try:
            await bounded(lookup, timeouts.SIGN_S)
            return lookup.result()
        except modal.exception.AuthError:
            raise
        except Exception:
            return None

    async def _deployed(self, name: str) -> Any:
        """Return the class of a deployed app; None if there is no app of this name."""
        import modal

        runner = modal.Cls.from_name(name, "Runner", client=self._client)
        try:
            await runner.hydrate.aio()
        except modal.exception.NotFoundError:
            return None
        self.app = self.app or UsedApp(name=name)
        return runner()

    async def _run_app(self, app: Any, running: asyncio.Future[None], end: asyncio.Event) -> None:
        """Run the app for the duration of the session; one task must enter and leave its context."""
        try:
            async with app.run(client=self._client):
                self.app = self.app or UsedApp(str(app.app_id))  # of a client that cannot be observed
                if not running.done():
                    running.set_result(None)
                await end.wait()
            self.app.ended = True
        except BaseException as error:
            if not running.done():
                running.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            if isinstance(error, asyncio.CancelledError):
                raise

    def left(self) -> str:
        """Return what may still run after `close`, and the command that ends it; empty if nothing can."""
        if self.app is None or self.app.ended:
            return ""
        jobs = self.tracker.open()
        open_jobs = f"{plural(len(jobs), 'job')} and " if jobs else ""
        stop = "nvfp4 remote stop modal"
        if not self.app.name:
            return f"{open_jobs}the {self.app} may still run: `{stop}` ends it"
        seconds = WARM_S if self.warm else SCALEDOWN_S
        option = "" if self.warm else f" --deployed-app {self.app.name}"
        stays = f"containers of the {self.app} stay up for {seconds} s after their last job"
        return f"{open_jobs}{stays}: `{stop}{option}` ends them now"

    @property
    def warm(self) -> bool:
        """Whether the app is a warmed one."""
        return self.app is not None and self.app.name.startswith(WARM)

    def discard(self) -> None:
        """Stop a warmed app when the connection is closed: it cannot be used."""
        self._unwanted = self.warm

    async def call(self, name: str) -> Any:
        """Return a call by its name, of another session too. Contacts nothing."""
        import modal

        return modal.FunctionCall.from_id(name, client=self._client)

    async def has_ended(self, app: str) -> bool:
        """Return whether an app has ended, so that what it has not returned will not come; False if unknown."""
        with contextlib.suppress(Exception):
            listing = asyncio.ensure_future(live_apps(self._client))
            await bounded(listing, timeouts.STATUS_S)
            return app not in {live.app_id for live in listing.result()}
        return False

    async def end_apps(self, named: str | None) -> list[FoundApp]:
        """End the running apps of this tool, or those of one name; see `apps.end_apps`."""
        return await end_apps(self._client, named=named)

    async def running_apps(self) -> list[FoundApp]:
        """Return the apps of this tool that run or have containers, of other sessions too."""
        return await running_apps(self._client)

    async def stream_of(self, text: str) -> AsyncIterator[str]:
        """Run a program (``Runner.execute``) and yield its output."""
        function = self.runner.execute
        await function.hydrate.aio()
        disable_attempts(function)
        async for output in function.remote_gen.aio(text):
            yield output

    async def _check_containers(self) -> None:
        """Call `none_up` if the app has no container: the wait for one costs nothing."""
        with contextlib.suppress(Exception):
            request = asyncio.ensure_future(self.runner.batch.get_current_stats.aio())
            await bounded(request, timeouts.STATUS_S)
            stats = request.result()
            self.queue = f"{plural(stats.backlog, 'job')} in its queue, {plural(stats.num_total_runners, 'container')}"
            if stats.num_total_runners == 0:
                self._none_up()

    # Cancelling and closing

    async def cancel(self, names: list[str]) -> None:
        """Cancel calls by name, also queued ones; those that cannot be cancelled are skipped."""
        import modal

        async def cancel(name: str) -> None:
            method = self.tracker.take(name)
            try:
                await modal.FunctionCall.from_id(name, client=self._client).cancel.aio()
            except BaseException:
                if method is not None:
                    self.tracker.started(name, method)
                raise

        await asyncio.gather(*map(cancel, names), return_exceptions=True)

    def close(self) -> None:
        """Cancel open calls, end the app and close the connection. Bounded; does not raise.

        May be called while another thread opens the connection, whose wait then ends.
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
            loop.run(self._end(), timeout_s=timeouts.CANCEL_S + timeouts.STOP_S)
        loop.close()

    async def _end(self) -> None:
        if self._client is None:
            return
        with contextlib.suppress(Exception):
            await bounded(asyncio.ensure_future(self._cancel_all()), timeouts.CANCEL_S)
        if self._end_app is not None and self._app_task is not None:
            self._end_app.set()
            if self.runner is None:  # the app is still starting: cancelling ends the wait of `open`
                self._app_task.cancel()
            with contextlib.suppress(Exception):
                await bounded(self._app_task, timeouts.STOP_S / 2)
        if self._unwanted and self.app is not None and self.app.id:
            with contextlib.suppress(Exception):
                await bounded(asyncio.ensure_future(stop_app(self._client, self.app.id)), timeouts.STOP_S / 4)
                self.app.ended = True
        with contextlib.suppress(Exception):
            close = getattr(self._client, "close", None) or self._client._close  # the name in client 1.5
            await bounded(asyncio.ensure_future(close.aio()), timeouts.STOP_S / 4)

    async def _cancel_all(self) -> None:
        await self.tracker.wait_sent(timeout_s=timeouts.SENT_S)
        if names := self.tracker.open():
            await self.cancel(names)


def _session_ended() -> RemoteError:
    return RemoteError("cancelled", "the session on Modal has ended")

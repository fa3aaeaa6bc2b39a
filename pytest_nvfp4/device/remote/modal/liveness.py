"""Whether Modal's server still answers: the time of its last answer, and questions to a server that is silent.

Modal's client (1.6) waits forever for a server that accepts connections and never responds. Any answer counts, whatever
was asked, so a server that is silent for a while and recovers ends nothing. Heartbeats are left out: they are answered
on their own schedule, by a server that may serve nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.errors import gone, silent
from pytest_nvfp4.device.remote.modal.login import check_reachable
from pytest_nvfp4.device.remote.modal.loop import abandon

_POLL_S = 0.5


class Liveness:
    """Clock of a server's answers.

    Args:
        explained: Converts an error of Modal's client that occurred while something was being done.
        on_alive: Awaited after each sign of life that was asked for.
    """

    def __init__(
        self, *, explained: Callable[[BaseException, str], RemoteError], on_alive: Callable[[], Awaitable[None]]
    ) -> None:
        self._explained = explained
        self._on_alive = on_alive
        self._client: Any = None
        self._server = ""
        self._last_answer = time.monotonic()

    def attach(self, client: Any, *, server: str) -> None:
        """Set the client that asks, and the address of its server."""
        self._client, self._server = client, server
        self._last_answer = time.monotonic()

    def answered(self, request: str) -> None:
        """Record an answer to a request."""
        if not request.endswith("Heartbeat"):
            self._last_answer = time.monotonic()

    async def while_silent(self, future: asyncio.Future[Any], doing: str) -> None:
        """Wait for a future; ask for a sign of life whenever the server has been silent for a while."""
        while True:
            done, _ = await asyncio.wait([future], timeout=timeouts.QUIET_S)
            if done:
                return
            if time.monotonic() - self._last_answer >= timeouts.QUIET_S / 2:  # of many waits, one sends the request
                await self.sign_of_life(doing)
                await self._on_alive()

    async def sign_of_life(self, doing: str) -> None:
        """Ask until the server answers anything, even a refusal. Raises RemoteError if it is silent for too long."""
        import modal

        asked = time.monotonic()
        while True:
            broken: BaseException | None = None
            try:
                await bounded(asyncio.ensure_future(self._client.hello.aio()), timeouts.SIGN_S)
                break
            except TimeoutError:
                pass
            except (modal.exception.ConnectionError, OSError) as error:
                broken = error
            except (modal.exception.ClientClosed, modal.exception.AuthError) as error:
                raise self._explained(error, doing) from None
            except Exception:
                break
            if self._last_answer > asked:  # another request was answered meanwhile
                return
            if time.monotonic() - max(asked - timeouts.QUIET_S, self._last_answer) >= timeouts.SILENT_S:
                if broken is not None:
                    raise self._explained(broken, doing) from None
                raise await asyncio.to_thread(self._gone_or_silent, doing) from None
            await asyncio.sleep(min(_POLL_S, timeouts.SIGN_S))
        self._last_answer = time.monotonic()

    def _gone_or_silent(self, doing: str) -> RemoteError:
        """Return why there was no response; Modal's client retries for so long that its own error arrives too late."""
        try:
            check_reachable(self._server)
        except RemoteError as error:
            return gone(error.problem, doing=doing)
        return silent(timeouts.SILENT_S, doing=doing)


async def bounded(future: asyncio.Future[Any], seconds: float) -> None:
    """Wait for a future, but not for its cancellation, which may take as long as the client tries to connect.

    `asyncio.wait_for` would wait for the cancellation.

    Raises:
        TimeoutError: The future was not done in time.
    """
    done, _ = await asyncio.wait([future], timeout=seconds)
    if not done:
        abandon(future)
        raise TimeoutError
    await future

"""Thread with an event loop, in which all communication with Modal runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def abandon(future: asyncio.Future[Any]) -> None:
    """Cancel a future without a waiter; its exception is retrieved, because asyncio would otherwise log it."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    future.cancel()


class LoopThread:
    """Runs coroutines for threads that block; a daemon thread, so that a hang does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run a coroutine and return its result. Raises TimeoutError, and what the coroutine raises."""
        future = self.start(coroutine)
        try:
            return future.result(timeout_s)
        except BaseException:  # also the timeout, and an interrupt of this thread
            future.cancel()
            raise

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Cancel what still runs, and end the thread."""

        async def drain() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        try:
            self.start(drain()).result(timeout_s)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            pass
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._loop.close()

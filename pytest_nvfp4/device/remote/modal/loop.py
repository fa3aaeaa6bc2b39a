"""A thread with an event loop of its own: everything that talks to Modal, each with a deadline."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def abandon(future: asyncio.Future[Any]) -> None:
    """Cancel what nobody waits for any more, and have nobody told how it ended (asyncio would log that)."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    future.cancel()


class LoopThread:
    """Runs coroutines for threads that block. The thread is a daemon: nothing that hangs keeps the process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin something."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Do something. Raises TimeoutError, and whatever it raises."""
        future = self.start(coroutine)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise
        except BaseException:  # an interrupt of this thread, too
            future.cancel()
            raise

    def close(self, *, timeout_s: float = 2.0) -> None:
        """End the thread; what still runs is cancelled."""

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

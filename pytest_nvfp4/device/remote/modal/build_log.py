"""Last lines of the log of an image's build, which name the step that failed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from pytest_nvfp4.device.remote.modal.errors import without_password
from pytest_nvfp4.device.remote.modal.liveness import bounded
from pytest_nvfp4.device.remote.modal.requests import inside, run_inside
from pytest_nvfp4.text import clip, printed, without_commands

_MOST_LINES, _MOST_CHARACTERS = 15, 240
_FETCH_S = 5.0


class BuildLog:
    """The log of the builds of one session, as far as it is kept."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._open = ""

    def add(self, response: Any) -> None:
        """Keep the lines of a response to ``ImageJoinStreaming``; pieces of lines are joined."""
        for log in getattr(response, "task_logs", ()):
            *lines, rest = (self._open + str(log.data).replace("\r", "\n")).split("\n")
            self._open = rest[-_MOST_CHARACTERS:]
            self._lines.extend(filter(None, map(_cleaned, lines)))

    @property
    def last(self) -> str:
        """The last line; empty if there is none."""
        return _cleaned(self._open) or (self._lines[-1] if self._lines else "")

    @property
    def tail(self) -> list[str]:
        """The last lines."""
        return [*self._lines, *filter(None, [_cleaned(self._open)])]

    async def fetch(self, client: Any, image: str) -> None:
        """Read the log of a build that failed before this session; without an answer the log stays empty."""
        from modal_proto import api_pb2

        async def read_log() -> None:
            request = api_pb2.ImageJoinStreamingRequest(
                image_id=image, timeout=_FETCH_S, include_logs_for_finished=True
            )
            async for response in inside(client)._stub.ImageJoinStreaming.unary_stream(request):
                if response.result.status or response.eof:  # the observed answers have filled this log
                    return

        with contextlib.suppress(Exception):
            await bounded(asyncio.ensure_future(run_inside(read_log)), _FETCH_S)


def _cleaned(line: str) -> str:
    return clip(printed(without_password(without_commands(line))).strip(), _MOST_CHARACTERS)

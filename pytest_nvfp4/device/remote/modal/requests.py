"""Requests of one client to Modal's server, and their answers, as they pass.

Only clients of this package are observed, at two methods that are internal to Modal's client (1.5 and 1.6). A client
without them is used unobserved.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Answered = Callable[[str, Any, Any], None]
"""Receives the name of a request, the request, and its answer; None for a refusal."""


def observe(client: Any, answered: Answered) -> None:
    """Report every answer to the requests of a client; those that deploy an app send nothing about git."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from grpclib import GRPCError, Status

        inner: Any = inside(client)
        call, stream = inner._call_unary, inner._call_stream

        async def observed_call(method: Any, request: Any, *args: Any, **more: Any) -> Any:
            name = _name(method)
            if name == "AppPublish" and "commit_info" in request.DESCRIPTOR.fields_by_name:
                request.ClearField("commit_info")  # the address of `origin` may hold a password
            try:
                response = await call(method, request, *args, **more)
            except GRPCError as error:
                if error.status is not Status.DEADLINE_EXCEEDED:  # the end of a deadline is no answer, whoever says it
                    answered(name, request, None)
                raise
            answered(name, request, response)
            return response

        async def observed_stream(method: Any, request: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
            async with contextlib.aclosing(stream(method, request, *args, **more)) as responses:
                async for response in responses:
                    answered(_name(method), request, response)
                    yield response

        inner._call_unary, inner._call_stream = observed_call, observed_stream


def inside(client: Any) -> Any:
    """Return the object behind the blocking wrapper of Modal's client."""
    from modal._utils.async_utils import synchronizer

    return synchronizer._translate_in(client)  # type: ignore[no-untyped-call]


async def run_inside(coroutine_function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in the event loop of Modal's client, to which its connections belong."""
    async_utils: Any = importlib.import_module("modal._utils.async_utils")
    result: T = await async_utils.synchronize_api(coroutine_function).aio()
    return result


def _name(method: Any) -> str:
    return str(getattr(method, "name", "")).rpartition("/")[2]

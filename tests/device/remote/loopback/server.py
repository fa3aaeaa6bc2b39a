"""The server: a thread with an event loop, the service, and everything that was said to it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from grpclib import GRPCError, Status
from grpclib.server import Server, Stream
from modal._utils.grpc_utils import SERVER_WARNING_HEADER, custom_detail_codec
from modal_proto import api_grpc

from tests.waiting import LONGEST_S

from .blobs import Blobs
from .environment import make_site
from .faults import Fault, Faults
from .service import Service

TOKEN_ID, TOKEN_SECRET = "ak-loopback-id", "as-loopback-secret"


class _Server(Server):
    """grpclib's server, which remembers its connections."""

    transports: list[Any]

    def _protocol_factory(self) -> Any:
        protocol: Any = super()._protocol_factory()
        begin = protocol.connection_made

        def made(transport: Any) -> None:
            self.transports.append(transport)
            begin(transport)

        protocol.connection_made = made
        return protocol


class Loopback:
    """A running server. Use it as a context manager.

    Attributes:
        url: What ``MODAL_SERVER_URL`` is to be.
        faults: What goes wrong.
        calls: The RPCs of clients in order; those of containers are in ``worker_calls``.
        received: Every request of clients, as bytes; those of containers are in ``worker_received``.
        token: What clients must show.
        warning: What is said beside every answer to clients.
        answering: Clients get answers; without, they wait for them.
        connected: Clients have a network; without, connections end as soon as something is said over them.
        headers: What came beside the requests of clients. Modal's token is there, and nowhere else.
        idempotency_keys: By what the client names one request that it may send several times.

    Args:
        backend: What clients that are started with ``environ()`` ask for as the container's device.
        environ: Variables of containers.
        capacity: Containers that there may be at once.
    """

    def __init__(self, *, backend: str = "host", environ: dict[str, str] | None = None, capacity: int = 64) -> None:
        self.faults = Faults()
        self.calls: list[str] = []
        self.worker_calls: list[str] = []
        self.received: list[bytes] = []
        self.worker_received: list[bytes] = []
        self.headers: list[bytes] = []
        self.idempotency_keys: list[str] = []
        self.answering = self.connected = True
        self.token, self.warning = (TOKEN_ID, TOKEN_SECRET), ""
        self.backend = backend
        self.folder = Path(tempfile.mkdtemp(prefix="loopback-"))
        self.blobs = Blobs()
        self.service = Service(
            folder=self.folder,
            packages=make_site(self.folder),
            environ=environ or {},
            blobs=self.blobs,
            capacity=capacity,
        )
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loopback", daemon=True)
        self._server: _Server | None = None
        self._streams: set[Stream[Any, Any]] = set()

    def __enter__(self) -> Loopback:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environ(self) -> dict[str, str]:
        """What a client's environment needs."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": TOKEN_ID,
            "MODAL_TOKEN_SECRET": TOKEN_SECRET,
            "MODAL_CONFIG_PATH": "/dev/null",
            "MODAL_DISABLE_API_PROXY": "1",
            "MODAL_HEARTBEAT_INTERVAL": "0.2",
            "NVFP4_MODAL_BACKEND": self.backend,
        }

    def forget(self) -> None:
        """Forget what was said, and let everything go well again."""
        self.service.attempts = self.service.restarts = False
        self.faults.clear()
        self.answering = self.connected = True
        self.token, self.warning = (TOKEN_ID, TOKEN_SECRET), ""
        client = (self.calls, self.received, self.headers, self.idempotency_keys)
        for said in (*client, self.worker_calls, self.worker_received):
            said.clear()

    def count(self, rpc: str) -> int:
        """How often clients called an RPC."""
        return Counter(self.calls)[rpc]

    def wait_for(self, condition: Callable[[], object], *, seconds: float = LONGEST_S) -> None:
        """Wait until something is so."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it did not come to that in time"
            time.sleep(0.005)

    def kill_container(self, task_id: str | None = None) -> None:
        """A container dies, as when its machine is taken away."""
        self._loop.call_soon_threadsafe(self.service.kill, task_id)

    def end_apps(self) -> None:
        """Clients are not heard of any more: their apps end."""

        async def end() -> None:
            self.service.end_apps()

        self._do(end())

    def die(self) -> None:
        """Close every connection and take no new ones."""
        self._do(self._close())

    def logs(self) -> str:
        """What the containers wrote."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def _do(self, what: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await what

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(LONGEST_S)

    async def _start(self) -> None:
        await self.blobs.start()
        self._server = _Server([self._api()], status_details_codec=custom_detail_codec)
        self._server.transports = []
        await self._server.start("127.0.0.1", 0)
        assert self._server._server is not None
        self.url = "http://127.0.0.1:" + str(self._server._server.sockets[0].getsockname()[1])
        self.service.url = self.url
        self.service.begin()

    async def _close(self) -> None:
        """Clients wait long for a connection that is not closed: abort every one."""
        if self._server is not None:
            self._server.close()
            for transport in self._server.transports:
                transport.abort()

    async def _stop(self) -> None:
        self.service.end()
        await self._close()
        await self.blobs.stop()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    def _api(self) -> Any:
        """The service as grpclib wants it: every RPC recorded, checked and open to faults."""
        names = [name for name in dir(api_grpc.ModalClientBase) if name[0].isupper()]
        members: dict[str, Any] = {name: self._method(name) for name in names}
        return type("Api", (api_grpc.ModalClientBase,), members)()

    def _method(self, name: str) -> Any:
        handler = getattr(self.service, name, None)
        streams = getattr(self.service, f"{name}_stream", None)

        async def method(_: object, stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            task = stream.metadata.get("x-loopback-task") if stream.metadata else None
            (self.calls if task is None else self.worker_calls).append(name)
            if task is None:
                self.received.append(request.SerializeToString())
                self.headers.append(repr(dict(stream.metadata or {})).encode())
                self.idempotency_keys.append(str((stream.metadata or {}).get("x-idempotency-key", "")))
                self._login(stream)
            else:
                self.worker_received.append(request.SerializeToString())
            fault = self.faults.of(name, worker=task is not None)
            await self._suffer(fault)
            await self._reachable(stream, worker=task is not None)
            if streams is not None:
                async for message in streams(request):
                    await stream.send_message(message)
                return
            if handler is None:
                raise GRPCError(Status.UNIMPLEMENTED, f"the loopback server has no {name}")
            answer = await handler(request, str(task) if task is not None else None)
            if fault is not None and fault.change is not None:
                answer = fault.change(answer)
            await self._reachable(stream, worker=task is not None)
            await stream.send_message(answer)
            if self.warning and task is None:
                await stream.send_trailing_metadata(metadata={SERVER_WARNING_HEADER: quote(self.warning)})

        return method

    def _login(self, stream: Stream[Any, Any]) -> None:
        given = stream.metadata or {}
        if (given.get("x-modal-token-id"), given.get("x-modal-token-secret")) != self.token:
            raise GRPCError(Status.UNAUTHENTICATED, "the token is not valid")

    async def _reachable(self, stream: Stream[Any, Any], *, worker: bool) -> None:
        """Wait for as long as clients get no answers; what came over a network that is cut is lost."""
        while not worker and not (self.answering and self.connected):
            if not self.connected:
                stream._stream._transport.abort()
            await asyncio.sleep(0.05)

    async def _suffer(self, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.kind == "error":
            raise fault.error()
        if fault.kind == "hang":
            await asyncio.sleep(3600)
        if fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        if fault.kind == "close":
            await self._close()
            await asyncio.sleep(3600)

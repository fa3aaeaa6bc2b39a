"""One process talks to the remote for several: test processes of xdist send their batches to it over a Unix socket.

Two processes that ask the same get one answer, which is paid for once. An answer waits for the second one on disk, so
that a long run does not fill the memory of the first. The socket lies in a folder that only its user
may enter; what goes over it is text (``wire``), a line each.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.remote.base import Answer, Arrival, Batch, Cost, Handle, RemoteError, RemoteStatus
from pytest_nvfp4.device.remote.kept import Draws, draws_of, question
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.remote.ticket import Ticket
from pytest_nvfp4.device.remote.wire import pack_answer, pack_batch, unpack_answer, unpack_batch


class Broker:
    """Serves a session to other processes of this user.

    Args:
        session: The session. It is opened by the first batch.
    """

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._folder = Path(tempfile.mkdtemp(prefix="nvfp4-broker-"))
        self.address = str(self._folder / "socket")
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="nvfp4-broker", daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        with contextlib.suppress(OSError):
            self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="nvfp4-broker", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """One process: its batches, and the answers to them as they come.

        What it asked for goes on when it ends: another process may come to the same item, and the end of the whole
        run cancels what is left.
        """
        say = threading.Lock()
        try:
            with connection, connection.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    said = json.loads(line)
                    batch = unpack_batch(said["batch"])
                    threading.Thread(
                        target=_tell,
                        args=(connection, say, batch.id, self._ask(batch)),
                        name="nvfp4-broker",
                        daemon=True,
                    ).start()
        except (OSError, ValueError, RemoteError):
            return

    def _ask(self, batch: Batch) -> _Asked:
        key = json.dumps([[question(job, batch) for job in batch.jobs], batch.blocks], sort_keys=True)
        with self._lock:
            asked = self._asked.get(key)
            if asked is None:
                (ticket,) = self._session.add([batch])
                asked = self._asked[key] = _Asked(ticket, self._folder / f"answer-{len(self._asked)}")
                return asked
        self._session.hurry(asked.ticket)  # asked for a second time: somebody waits for it
        return asked


class _Asked:
    """A batch that was asked for: its ticket, and a file for its answer."""

    def __init__(self, ticket: Ticket, file: Path) -> None:
        self.ticket = ticket
        self._file = file
        self._lock = threading.Lock()

    def answer(self) -> Answer:
        """Its answer, once it is there. Raises RemoteError."""
        answer = self.ticket.wait_kept()
        with self._lock:
            if answer is None:
                return unpack_answer(self._file.read_text(encoding="utf-8"))
            with contextlib.suppress(OSError):  # no room: it stays in memory
                self._file.write_text(pack_answer(answer), encoding="utf-8")
                self.ticket.let_go()
            return answer


def _tell(connection: socket.socket, say: threading.Lock, batch: str, asked: _Asked) -> None:
    said: dict[str, Any]
    try:
        answer = asked.answer()
        said = {
            "answer": pack_answer(answer.model_copy(update={"batch": batch})),
            "draws": [draws_of(job) for job in asked.ticket.batch.jobs],
        }
    except RemoteError as error:
        said = {"trouble": error.trouble, "what": error.what, "do": error.do}
    with contextlib.suppress(OSError), say:
        connection.sendall((json.dumps({"for": batch, **said}) + "\n").encode())


class BrokerRemote:
    """The remote of a process that asks a broker.

    Args:
        address: The broker's.
        name: Name of the remote behind it.
    """

    def __init__(self, address: str, *, name: str) -> None:
        self.name = name
        self.draws: dict[str, tuple[Draws, ...]] = {}
        """What was drawn for the jobs of a batch when they were run, by its id."""
        self._address = address
        self._connection: socket.socket | None = None
        self._arrivals: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._say = threading.Lock()

    def describe(self) -> str:
        """What it is."""
        return f"{self.name}, by way of the controlling process"

    def submit(self, batches: Sequence[Batch]) -> list[Handle]:
        """Hand batches to the broker."""
        for batch in batches:
            self._send({"batch": pack_batch(batch)})
        return [Handle(batch, batch.id) for batch in batches]

    def collect(self, handles: Sequence[Handle], *, timeout_s: float) -> Iterator[Arrival]:
        """What the broker said."""
        by_id = {handle.call: handle for handle in handles}
        until = time.monotonic() + timeout_s
        while True:
            try:
                batch, said = self._arrivals.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if not batch:
                raise _gone()
            if (handle := by_id.get(batch)) is None:
                continue
            if "answer" in said:
                self.draws[batch] = tuple((int(seed), int(key)) for seed, key in said["draws"])
                yield Arrival(handle, answer=unpack_answer(said["answer"]))
            else:
                yield Arrival(handle, error=RemoteError(said["trouble"], said["what"], said["do"]))

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Nothing: another process may need them, and the end of the run cancels the rest."""

    def status(self) -> RemoteStatus:
        """Only that there is a broker."""
        return RemoteStatus(self._connection is not None, self.describe())

    def warm(self) -> None:
        """Nothing to do here."""

    def stop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def cost(self) -> Cost:
        """What it costs is counted where the broker is."""
        return Cost()

    def _send(self, said: dict[str, Any]) -> None:
        try:
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX)
                self._connection.connect(self._address)
                threading.Thread(
                    target=_listen, args=(self._connection, self._arrivals.put), name="nvfp4-broker", daemon=True
                ).start()
            with self._say:
                self._connection.sendall((json.dumps(said) + "\n").encode())
        except OSError as error:
            raise _gone() from error


def _listen(connection: socket.socket, put: Callable[[tuple[str, dict[str, Any]]], None]) -> None:
    with contextlib.suppress(OSError, ValueError), connection.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            said = json.loads(line)
            put((said["for"], said))
    put(("", {}))


def _gone() -> RemoteError:
    return RemoteError("network", "the process that talks to the remote has ended", "run again with --nvfp4-resume")

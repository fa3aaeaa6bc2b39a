"""The keeper: a process that holds the result pipe of a worker, and compares the worker's memory.

``keep`` forks. The parent stays behind as the keeper, with the process number that everybody knows; the child goes on
as the worker. What the worker sends reaches the keeper first, which passes it on line by line. After the last event the
keeper stops the worker, reads its memory once more, and adds one event of its own, ``kept``, which no other process
can send. It ends as the worker ends: with its exit code, or by its signal.

The child moves behind its wall after that (``isolation.wall``), so that the keeper stays outside. The worker hands over
its open ``/proc/self/mem``, which works whatever may trace processes here (Yama, a sandbox), and goes on working if a
kernel makes the process unreadable for others.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import select
import signal
import socket
import struct
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.prctl import die_with_parent, set_dumpable
from pytest_nvfp4.isolation.seal.comparison import Comparison, Listed, Memory
from pytest_nvfp4.isolation.seal.cpython import LayoutError
from pytest_nvfp4.isolation.seal.inventory import Inventory

_HEADER: Final = struct.Struct("<QQQQ")
_INT: Final = struct.Struct("i")
_CREDENTIALS: Final = struct.Struct("iII")
_STOP_S: Final = 0.5
_CHUNK: Final = 1 << 16
_LAST: Final = b'{"event": "end"'
_LONGEST_LAST: Final = 1 << 12
_DONE: Final = b"\0"
"""What the worker says when it has sent its last event."""
_READINGS: Final = (5.0, 100.0)
"""Range of the random time between two readings while the worker runs, in times of a reading: 2 % of a core on average.

On a busy machine both last longer, so that the readings of a compile do not become more.
"""
_LONGEST_WAIT_S: Final = 5.0
_SHORTEST_READING_S: Final = 0.01
_MOST_CHUNKS: Final = 64
"""Chunks that are read after the end of the worker; what it left behind could write without end."""
_MOST_NAMED: Final = 20
_LONGEST_LISTS: Final = 1 << 28


class Sealed:
    """The worker's side: it lists the memory to compare, and waits for the keeper where it must not go on."""

    def __init__(self, control: socket.socket, result: int) -> None:
        self._receive, self._send, self._control = control.recv, control.sendall, control
        self._memory: int | None = None
        self._roots: Mapping[str, object] = {}
        self.result = result

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors that must stay open."""
        return self._control.fileno(), self.result

    def open_memory(self) -> None:
        """Open the memory of this process for the keeper, in the process that will run untrusted code."""
        set_dumpable(True)  # otherwise the file belongs to root
        with contextlib.suppress(OSError):  # without /proc: the keeper reports that nothing could be read
            self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)

    def seal(self, package: str, roots: Mapping[str, object]) -> None:
        """Have the keeper read the memory of everything that judges, before untrusted code runs.

        Args:
            package: Name of the package whose modules judge.
            roots: Objects that hold the state of the judgement, and namespaces, by name.
        """
        self._roots = dict(roots)  # what is compared at the end must not have been freed by then
        collects = gc.isenabled()
        gc.disable()
        listed = Inventory.of(package, roots)
        if collects:
            gc.enable()
        blocks = [listed.ranges.tobytes(), listed.codes.tobytes(), listed.names.tobytes()]
        blocks.append(json.dumps([listed.closed, listed.hiding, listed.labels]).encode())
        passed = [] if self._memory is None else [self._memory]
        socket.send_fds(self._control, [_HEADER.pack(*map(len, blocks))], passed)
        if self._memory is not None:
            os.close(self._memory)
        for block in blocks:
            self._control.sendall(block)
        self._receive(1)

    def wait(self) -> None:
        """Wait until the keeper has read the memory after the last event."""
        with contextlib.suppress(OSError):
            self._send(_DONE)
            self._receive(1)


def keep(result: int) -> Sealed:
    """Fork, stay behind as the keeper of the descriptor ``result``, and return in the child (see the module)."""
    die_with_parent(int(os.environ.get(PARENT_VARIABLE) or os.getppid()))
    keeper_control, control = socket.socketpair()
    keeper_control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    reading, writing = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(BaseException):
            control.close()
            os.close(writing)
            _Keeper(pid, keeper_control, reading, result).run()
        os._exit(1)
    os.environ[PARENT_VARIABLE] = str(keeper)
    keeper_control.close()
    os.close(reading)
    os.close(result)
    return Sealed(control, writing)


class _Keeper:
    """Passes on what a child sends, and compares the child's memory."""

    def __init__(self, pid: int, control: socket.socket, reading: int, result: int) -> None:
        gc.disable()  # a collection would copy the pages that it shares with the worker
        set_dumpable(False)  # its memory, and the result pipe, are not for the worker's eyes
        self._pid = self._worker = pid
        self._child = os.pidfd_open(pid)
        self._control = control
        self._reading = reading
        self._result = result
        self._comparison: Comparison | None = None
        self._changed: dict[str, None] = {}
        self._unread = ""
        self._line = b""
        self._digest, self._here = hashlib.sha256(), hashlib.sha256()
        self._ended = self._sealed = False

    def run(self) -> NoReturn:
        """Serve the child to its end, and end as it does."""
        poll = select.poll()
        for descriptor in (self._reading, self._control.fileno(), self._child):
            poll.register(descriptor, select.POLLIN)
        until = 0.0
        while True:
            left = max(0.0, until - time.monotonic())
            ready = {descriptor for descriptor, _ in poll.poll(1000 * left)}
            if self._reading in ready and not self._pass_on():
                poll.unregister(self._reading)
            if self._control.fileno() in ready and not self._answer():
                poll.unregister(self._control.fileno())
            if self._child in ready:
                self._drain()
                self._end()
            if time.monotonic() >= until:
                started = time.monotonic()
                if not self._ended:
                    self._compare()
                took = max(time.monotonic() - started, _SHORTEST_READING_S)
                until = started + took + min(took * random.uniform(*_READINGS), _LONGEST_WAIT_S)

    def _drain(self) -> None:
        for _ in range(_MOST_CHUNKS):
            if not self._pass_on():
                break

    def _end(self) -> NoReturn:
        _, status = os.waitpid(self._pid, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)

    def _pass_on(self) -> bool:
        """Pass on one chunk; return whether there was any. After the last event, nothing is passed on."""
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(self._reading, False)
            chunk = os.read(self._reading, _CHUNK)
            if chunk and not self._ended:
                self._scan(chunk)
            return bool(chunk)
        return False

    def _scan(self, chunk: bytes) -> None:
        """Write the lines of a chunk, up to the last event."""
        for piece in chunk.splitlines(keepends=True):
            self._write(piece)
            self._line += piece[: _LONGEST_LAST - len(self._line)]
            self._here.update(piece)
            if piece.endswith(b"\n"):
                if self._is_last(self._line):
                    self._finish()
                    return
                self._digest, self._line = self._here.copy(), b""

    def _is_last(self, line: bytes) -> bool:
        """Return whether a line is the worker's last event: it has the hash of all before it (``event_sender``)."""
        if not line.startswith(_LAST):
            return False
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            return bool(json.loads(line)["sha256"] == self._digest.hexdigest())
        return False

    def _finish(self) -> None:
        """Compare the memory of the stopped worker, and send the keeper's own event."""
        self._ended = True
        self._stop()
        self._compare()
        changed = list(self._changed)
        event = {"event": "kept", "changed": changed[:_MOST_NAMED], "more": max(0, len(changed) - _MOST_NAMED)}
        self._write((json.dumps({**event, "unread": self._unread}) + "\n").encode())
        with contextlib.suppress(OSError):
            os.kill(self._worker, signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._control.send(b"\0")

    def _stop(self) -> None:
        """Stop all threads of the worker, which waits for the keeper in one of them."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            os.kill(self._worker, signal.SIGSTOP)
            until = time.monotonic() + _STOP_S
            status = Path(f"/proc/{self._worker}/stat")
            while status.read_text(errors="replace").rpartition(")")[2].split()[0] not in "TtZX":
                if time.monotonic() > until:
                    break
                time.sleep(0.0005)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._result, view) :]

    def _answer(self) -> bool:
        """Read the lists of the worker's memory, once; return whether to go on listening."""
        try:
            if self._sealed:
                if self._control.recv(len(_DONE)) != _DONE:  # the worker has ended
                    return False
                self._drain()
                if not self._ended:  # events that the worker did not send hide which one is its last
                    self._finish()
                return False
            header, passed = self._receive_header()
            self._sealed = True
            if not passed:
                raise OSError("the worker cannot open /proc/self/mem")
            blocks = [self._receive(size) for size in _HEADER.unpack(header)]
            ranges, codes, names = (array("Q", block) for block in blocks[:3])
            closed, hiding, labels = json.loads(blocks[3])
            listed = Listed(ranges, codes, names, closed, [frozenset(every) for every in hiding], labels)
            self._comparison = Comparison(Memory(passed[0]), listed)
            self._unread = ""
        except (OSError, ValueError, MemoryError, struct.error) as error:
            self._unread = str(error) if isinstance(error, OSError | LayoutError) else "the worker's lists are damaged"
        with contextlib.suppress(OSError):
            self._control.send(b"\0")
        return True

    def _receive_header(self) -> tuple[bytes, list[int]]:
        """Return the sizes of the lists and the descriptor of the worker's memory; note the worker's number."""
        space = socket.CMSG_SPACE(_INT.size) + socket.CMSG_SPACE(_CREDENTIALS.size)
        header, ancillary, _, _ = self._control.recvmsg(_HEADER.size, space)
        passed: list[int] = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                passed += array("i", data[: len(data) - len(data) % 4])
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and not self._sealed:
                self._worker = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0] or self._pid
        if len(header) != _HEADER.size:
            raise OSError("the worker has closed the keeper's socket")
        return header, passed

    def _receive(self, size: int) -> bytes:
        if size > _LONGEST_LISTS:
            raise ValueError(f"a list of {size} bytes")
        data = bytearray()
        while len(data) < size:
            chunk = self._control.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise OSError("the worker's lists end early")
            data += chunk
        return bytes(data)

    def _compare(self) -> None:
        if self._comparison is not None:
            for label in self._comparison.changed():
                self._changed.setdefault(label)

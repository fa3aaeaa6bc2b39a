"""The process in which a kernel's code runs, as the machine's process sees it.

It is forked before the machine's process has read the job (``kernel_fork``), and holds no descriptor but its standard
streams and two sockets. On one it gets commands (load, prepare, call, ...), on the other it sends requests to the
device. While a command runs, this process executes requests; it answers each one before it reads the next.

The end of the kernel's process is that of this process, with the same status. What breaks the protocol ends the job.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn

from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.conversation import ConversationLog
from pytest_nvfp4.device.worker.kernel_fork import ForkedKernel
from pytest_nvfp4.device.worker.kernel_stack import CRASHES, crash
from pytest_nvfp4.device.worker.memory import HostMemory
from pytest_nvfp4.device.worker.returned_tensors import Returned, counts
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.machine.server import Server
from pytest_nvfp4.machine.values import Decoder, Encoder, device_fields
from pytest_nvfp4.machine.wire import Blob, Channel, HungUpError, Message, WireError
from pytest_nvfp4.sim.run.session import Session

Sizes = Sequence[tuple[int, int, int, int]]

_FIRST_STREAM: Final = 0x5E0000000001
_END_S: Final = 5.0
"""Seconds for the kernel's process to end by itself."""
_KINDS: Final = {"kind": 64, "message": 200_000, "file": 4096, "text": 4096, "detail": 50_000}
"""Most characters of the texts of a finding."""


class KernelError(Exception):
    """The kernel's code raised an exception; ``finding`` describes it. ``status`` is that of the job."""

    def __init__(self, finding: Finding, status: str = "error") -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.status = status


class KernelProcess:
    """The kernel's process.

    Args:
        forked: The process.
        server: Executes its requests.
        session: The device.
        violated: Ends the job with a finding.
        log: Records the conversation; None for no record.
        crashed: Is called with the finding of a segmentation fault, before this process ends like the other one.
    """

    def __init__(
        self,
        forked: ForkedKernel,
        server: Server,
        session: Session,
        *,
        violated: Callable[[Finding], NoReturn],
        crashed: Callable[[Finding], None],
        log: ConversationLog | None = None,
    ) -> None:
        self._crashed = crashed
        self._log = log
        self._sources, self._stack = "", ""
        self._pid = forked.pid
        self._end = os.pidfd_open(forked.pid)
        self._commands = Channel(forked.commands)
        self._requests = Channel(forked.requests)
        self._server = server
        self._session = session
        self._violated = violated
        self._streams = itertools.count(_FIRST_STREAM)
        self._memory = HostMemory()
        self.prepares = False

    # ---- the kernel, as its caller sees it -----------------------------------------------------------------------

    def load(self, fields: Mapping[str, Any]) -> None:
        """Import the kernel. Raises KernelError."""
        self._sources, self._stack = fields["sources"], fields["stack"]
        if self._log is not None:
            self._log.sources = self._sources
        self.prepares = self._command("load", fields).fields.get("prepares") is True

    def prepare(self, sizes: Sizes) -> None:
        """See ``CalledKernel``. Raises KernelError."""
        self._command("prepare", {"sizes": sizes})

    def settle(self) -> None:
        """See ``CalledKernel``: execute the requests that threads of the kernel send meanwhile. Raises KernelError."""
        self._command("settle")

    def end(self) -> list[str]:
        """End the process; return what its own guards have noticed."""
        messages = self._command("end").fields.get("messages")
        if not select.select([self._end], [], [], _END_S)[0]:
            self._kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        return [str(message)[:2000] for message in messages[:100]] if isinstance(messages, list) else []

    def empty(self, size: int) -> Any:
        """Return a new tensor of as many bytes in device memory, which the kernel cannot free."""
        server = self._server
        block = server.blocks.allocate(size, owned=False)
        server.streams.allocated(block.address, size, pooled=True)
        return block.tensor

    def buffers(self, inputs: Any, *, offset: bool = False) -> CallBuffers:
        """See ``CalledKernel``."""
        import torch

        return CallBuffers(torch, inputs, offset=offset, allocate=self.empty)

    def call(self, slot: CallBuffers) -> list[Returned]:
        """See ``CalledKernel``. Raises KernelError."""
        arguments, given = slot.arguments()
        return self._returned(self.call_on(*arguments, outputs=given, returns=slot.returns), given, slot.returns)

    def call_late(self, slot: CallBuffers, *, between: AbstractContextManager[Any]) -> list[Returned]:
        """See ``CalledKernel``. Raises KernelError.

        The simulated device has done the caller's work when it is issued, so that only its order matters: the inputs
        are poison before the call, and ``between`` gives them to launches that are ordered behind the caller.
        """
        memory = self._memory
        inputs = slot.inputs
        staged = [region.read(memory) for region in inputs]
        slot.poison_inputs(memory)
        with self.on_new_stream():
            for region, data in zip(inputs, staged, strict=True):
                memory.write(region.address, data)
            with between:
                returned = self.call(slot)
        return [Returned(one.description, None if one.tensor is None else one.tensor.clone()) for one in returned]

    def call_on(self, *arguments: Any, outputs: Sequence[Any] = (), returns: str = "any") -> Message:
        """Call the kernel with arguments of tensors, numbers, lists and tuples. Raises KernelError.

        ``outputs`` are the tensors that it writes, or those of its results (see ``buffers.CallBuffers.arguments``).
        """
        blocks = self._server.blocks

        def described(tensor: Any) -> list[Any]:
            """The kernel's process makes the storage of a tensor, and needs its size."""
            fields = device_fields(tensor)
            block = blocks.at(fields[0])
            return [*fields, 0 if block is None else block.size]

        encoder = Encoder(lambda tensor: blocks.at(tensor.untyped_storage().data_ptr()) is not None, described)

        def encoded(value: Any) -> Any:
            if isinstance(value, tuple):
                return {"tuple": [encoded(each) for each in value]}
            return [encoded(each) for each in value] if isinstance(value, list) else encoder.encode(value)

        made = [encoded(each) for each in arguments]
        results = [
            [next((at for at, tensor in enumerate(encoder.tensors) if tensor is one), None), _dtype(one), [*one.shape]]
            for one in outputs
        ]
        fields = {"arguments": made, "outputs": results, "returns": returns, "stream": self._server.stream}
        return self._command("call", fields, encoder.blobs)

    @contextmanager
    def on_new_stream(self) -> Iterator[None]:
        """See ``simulation.StreamUser``."""
        server = self._server
        before = server.stream
        server.stream = server.streams.add(next(self._streams), blocking=False)
        server.idle()
        try:
            yield
        finally:
            server.stream = before
            server.idle()

    @contextmanager
    def limited_to(self, most: int) -> Iterator[None]:
        """See ``far_end.CallableKernel``."""
        server, session = self._server, self._session
        before = server.operators.largest, session.memory.most
        server.operators.largest = session.memory.most = most
        try:
            yield
        finally:
            server.operators.largest, session.memory.most = before

    def _returned(self, answer: Message, given: list[Any], returns: str) -> list[Returned]:
        """Return what the kernel returned; its own tensors must be device memory, which stays as long as the job."""
        import torch

        described = answer.fields.get("returned")
        if not isinstance(described, list) or len(described) != len(given):
            self._violate(f"it describes {type(described).__name__} for {len(given)} outputs")
        returned = []
        for one, c in zip(described, given, strict=True):
            description, fields = one if isinstance(one, list) and len(one) == 2 else (None, [])
            if not isinstance(description, str) or len(description) > 2000:
                self._violate("its description of an output cannot be read")
            if description == "c" and c.is_meta:
                self._violate("it describes an output as one that it was not given")
            if description != "other":
                returned.append(Returned(description))
                continue
            blocks = self._server.blocks
            try:
                tensor = Decoder((), blocks.tensor).decode({"tensor": fields})
            except Exception as error:
                self._violate(f"its output is no device tensor: {error}")
            if tensor.shape != c.shape or not counts(torch, tensor, c, returns=returns):
                self._violate(f"its output has shape {list(tensor.shape)[:4]} and type {tensor.dtype}")
            blocks.keep(fields[0])
            returned.append(Returned("other", tensor))
        return returned

    # ---- the conversation ----------------------------------------------------------------------------------------

    def _command(self, kind: str, fields: Mapping[str, Any] | None = None, blobs: Sequence[Blob] = ()) -> Message:
        """Send a command, execute requests until it has ended, and return its answer. Raises KernelError."""
        if self._log is not None:
            self._log.command(kind, fields, blobs)
        try:
            self._commands.send(kind, fields, blobs)
            answer = self._serve()
        except HungUpError:
            self._ended()
        except WireError as error:
            self._violate(str(error))
        if self._log is not None:
            self._log.answer(answer)
        if answer.kind == "raised":
            raise KernelError(self._finding(answer.fields.get("finding")), "error")
        if answer.kind != "returned":
            self._violate(f"it answers {kind} with {answer.kind[:40]!r}")
        return answer

    def _serve(self) -> Message:
        poll = select.poll()
        for descriptor in (self._commands, self._requests):
            poll.register(descriptor, select.POLLIN)
        poll.register(self._end, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._requests.fileno() in ready:
                try:
                    request = self._requests.receive()
                except HungUpError:
                    return self._last_answer()
                self._answer(request)
            elif self._commands.fileno() in ready:
                return self._commands.receive()
            else:
                return self._last_answer()

    def _last_answer(self) -> Message:
        """Return the answer that the process has sent before it ended or hung up. Raises HungUpError."""
        if not select.select([self._commands], [], [], 0)[0]:
            raise HungUpError
        return self._commands.receive()

    def _answer(self, request: Message) -> None:
        kind = "ok"
        try:
            fields, blobs = self._server.execute(request)
        except WireError:
            raise
        except Exception as error:  # the kernel's process raises it again
            kind, fields, blobs = "error", {"type": type(error).__name__, "text": str(error)[:100_000]}, []
        if self._log is not None:
            self._log.request(request, (kind, fields, blobs))
        self._requests.send(kind, fields, blobs)

    def _finding(self, values: Any) -> Finding:
        """Return the finding of an exception, as the kernel's process describes it."""
        texts = {name: values.get(name) for name in _KINDS} if isinstance(values, dict) else {}
        line = values.get("line") if isinstance(values, dict) else None
        needed = isinstance(texts.get("kind"), str) and isinstance(texts.get("message"), str)
        if not needed or not all(text is None or isinstance(text, str) for text in texts.values()):
            self._violate("its finding cannot be read")
        if line is not None and (type(line) is not int or not 0 <= line < 1 << 31):
            self._violate("the line of its finding is no number")
        kept = {name: (text or "")[: _KINDS[name]] for name, text in texts.items()}
        return Finding(
            kept["kind"],
            kept["message"],
            file=kept["file"] or None,
            line=line,
            text=kept["text"] or None,
            detail=kept["detail"],
        )

    def _violate(self, what: str) -> NoReturn:
        """End the job because of what the kernel's process sent."""
        self._kill()
        self._violated(
            Finding(
                "cheat",
                f"the kernel's process broke the protocol of the simulated device: {what}; host code must use the "
                "device through torch, the CUDA bindings and the DSL, and leave descriptors alone that it did not open",
            )
        )

    def _kill(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # the wall around this process may forbid it; its end ends the other one, too
            os.kill(self._pid, signal.SIGKILL)

    def _ended(self) -> NoReturn:
        """End as the kernel's process has ended."""
        if not select.select([self._end], [], [], _END_S)[0]:
            self._violate("it closed its connection")
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            faulthandler.disable()
            if -code in CRASHES:
                self._crashed(crash(signal.Signals(-code), self._stack, sources=self._sources))
            with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code & 0xFF)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")

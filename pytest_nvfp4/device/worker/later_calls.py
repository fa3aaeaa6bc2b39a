"""Later calls on the same inputs: launches that are unlike those of all calls before are checked too.

A kernel may launch other code in a later call than in the first one, the same code with another flag, or fewer kernels.
So it is called again. Its launches are first recorded and not executed, which costs no more than its host code; if they
are unlike those of each call before, the requests of that call are executed, from the device memory that it began with.
The kernel's process has no part in this repetition. What it reads of device memory in a recorded call is what it has
read in the first one (``machine.host_reads``), so that it goes on behind its own checks of results. Before it reads
what it has not read in the first call, the launches so far are executed, and those that follow as well: it cannot tell
a recorded call from any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pytest_nvfp4.device.worker.host_writes import HostWrites
from pytest_nvfp4.device.worker.kernel_process import KernelError
from pytest_nvfp4.device.worker.sim_findings import in_order, merge_by_statement, worker_finding
from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.machine.host_reads import HostReads
from pytest_nvfp4.machine.request_log import Observers, RequestLog
from pytest_nvfp4.machine.requests import Executed, Observer
from pytest_nvfp4.machine.server import Server
from pytest_nvfp4.machine.wire import Answer, Message
from pytest_nvfp4.sim.memory.coverage import findings as coverage_findings
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.session import Session

_CALLS: Final = 3
_WORD: Final = 8
_ADDRESS: Final = b"address!"


class _Launched:
    """An observer of launches: the names of their kernels, and what makes two launches alike."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.names: list[str] = []
        self.kinds: list[bytes] = []

    def executed(self, request: Executed) -> None:
        """See ``Observer``. An address in a parameter is known while its block lives."""
        if request.launch is not None:
            self.names.append(short_kernel(request.launch.kernel))
            self.kinds.append(self._kind(request.launch))

    def _kind(self, launch: Launch) -> bytes:
        """Return a digest of code, sizes, attributes, and parameters but for the addresses."""
        digest = hashlib.blake2b()
        digest.update((launch.module.ptx or "").encode())
        sizes = (launch.kernel, launch.grid, launch.block, launch.cluster, launch.dynamic_smem)
        digest.update(repr((*sizes, sorted(launch.attributes.items()))).encode())
        for param in launch.params:
            words = [param[at : at + _WORD] for at in range(0, len(param), _WORD)]
            digest.update(b"|" + b"".join(_ADDRESS if self._is_address(word) else word for word in words))
        return digest.digest()

    def _is_address(self, word: bytes) -> bool:
        if len(word) < _WORD:
            return False
        try:
            self._server.blocks.within(int.from_bytes(word, "little"), 0, what="a parameter")
        except HostSideError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class FirstCall:
    """What a call has launched, and what its host code has read of device memory."""

    launched: _Launched
    reads: HostReads = field(default_factory=HostReads)


class LaterCalls:
    """Further calls of a kernel on one device.

    Args:
        session: The device.
        server: Executes the requests of the kernel's process.
    """

    def __init__(self, session: Session, server: Server) -> None:
        self._session = session
        self._server = server
        self._log = RequestLog(server)
        self._unread = False

    @contextmanager
    def first(self) -> Iterator[FirstCall]:
        """Record a call with which later ones are compared."""
        call = FirstCall(_Launched(self._server))
        with self._observed(call.launched, reads=call.reads):
            yield call

    def findings(
        self, first: FirstCall, call: Callable[[], object], *, outputs: Callable[[], Iterable[Region]] = tuple
    ) -> list[Finding]:
        """Call the kernel again, and return what is wrong with calls whose launches are unlike those before.

        Args:
            first: The first call, on the same inputs.
            call: Calls the kernel.
            outputs: Returns the memory of the outputs of the last call, each element of which it must write.
        """
        session = self._session
        seen = [first.launched.kinds]
        found: list[Finding] = []
        with self._unordered():
            for number in range(1, 1 + _CALLS):
                start = len(session.launches)
                launched = _Launched(self._server)
                self._unread = False
                first.reads.again(self._read_anew)
                faults = len(session.faults)
                with self._recorded(launched, reads=first.reads):
                    try:
                        call()
                        raised = False
                    except KernelError:  # what it has launched by then is checked
                        raised = True
                    if self._unread:
                        found.append(self._unchecked(f"in later call {number} on the same inputs, which reads anew"))
                    del session.faults[faults:]  # of launches before a read: those that are unlike are executed again
                    kinds = launched.kinds
                    if not any(kinds == (one[: len(kinds)] if raised else one) for one in seen):
                        del session.launches[start:]
                        regions = [] if raised else list(outputs())
                        found += self._executed(_described(number, launched, seen), start, regions)
                        seen.append(kinds)
                del session.launches[start:]
                if raised:
                    break
        return found

    def _read_anew(self, request: Message, answer: Answer) -> Answer:
        """Return the answer to a read that the first call did not make: of what the launches so far compute."""
        if not self._session.launch_only:
            return answer
        if self._log.incomplete:
            self._unread = True
            return answer
        self._session.launch_only = False
        return self._log.answer(request)

    def _executed(self, where: str, start: int, outputs: list[Region]) -> list[Finding]:
        """Execute the requests of the recorded call, and return what is wrong with its launches and its outputs."""
        session, faults = self._session, len(self._session.faults)
        if self._log.incomplete:
            return [self._unchecked(where)]
        for region in outputs:
            region.watch(region.owner_bytes)
        session.launch_only = False
        with self._log.repeated(HostWrites(session)):
            pass
        reported = [each for record in session.launches[start:] for each in merge_by_statement(record.findings)]
        found = [*map(worker_finding, in_order([fault.finding() for fault in session.faults[faults:]], reported))]
        del session.faults[faults:]
        if not any(finding.severity == "error" for finding in found):
            found += map(worker_finding, coverage_findings(outputs))
        return [replace(finding, message=f"{finding.message}\n  {where}") for finding in dict.fromkeys(found)]

    def _unchecked(self, where: str) -> Finding:
        return Finding("race-warning", f"not checked {where}: {self._log.incomplete}", severity="warning")

    @contextmanager
    def _recorded(self, launched: _Launched, *, reads: HostReads) -> Iterator[None]:
        """Log the requests of a call, and execute none of its launches."""
        self._session.launch_only = True
        self._log.begin()
        try:
            with self._observed(self._log, launched, reads=reads):
                yield
        finally:
            self._log.end()
            self._session.launch_only = False

    @contextmanager
    def _observed(self, *observers: Observer, reads: HostReads) -> Iterator[None]:
        server = self._server
        before = server.observer
        server.observer, server.reads = Observers([before, *observers]), reads
        try:
            yield
        finally:
            server.observer, server.reads = before, None

    @contextmanager
    def _unordered(self) -> Iterator[None]:
        """Look for no races between streams, where launches are missing."""
        session = self._session
        assert session.streams is not None
        order, watcher = session.order, session.streams.watcher
        session.order = session.streams.watcher = None
        try:
            yield
        finally:
            session.order, session.streams.watcher = order, watcher


def _described(number: int, launched: _Launched, seen: list[list[bytes]]) -> str:
    """Return in what a later call is unlike those before it."""
    known = {kind for kinds in seen for kind in kinds}
    new = [name for name, kind in zip(launched.names, launched.kinds, strict=True) if kind not in known]
    where = f"in later call {number} on the same inputs"
    if new:
        return f"{where}, which launches {', '.join(dict.fromkeys(new))} unlike the calls before it"
    names = ", ".join(dict.fromkeys(launched.names)) or "no kernel"
    return f"{where}, which launches {names} in another number or order than the calls before it"

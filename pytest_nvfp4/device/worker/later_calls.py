"""Later calls on the same inputs: a launch that is unlike all that were checked is checked too.

A kernel may launch other code in a later call than in the first one, or the same code with another flag. So the kernel
is called again. Its launches are first recorded and not executed, which costs no more than its host code; if one of
them is new, the requests of that call are executed, from the device memory that it began with. The kernel's process has
no part in this repetition, and cannot tell whether its launches are executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pytest_nvfp4.device.worker.kernel_process import KernelError
from pytest_nvfp4.device.worker.sim_findings import merge_by_statement, worker_finding
from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.machine.request_log import RequestLog
from pytest_nvfp4.machine.server import Server
from pytest_nvfp4.sim.races.host_order import short_kernel
from pytest_nvfp4.sim.run.session import LaunchRecord, Session

_CALLS: Final = 3
_WORD: Final = 8
_ADDRESS: Final = b"address!"


class LaterCalls:
    """Further calls of a kernel on one device.

    Args:
        session: The device, which looks for races.
        server: Executes the requests of the kernel's process.
    """

    def __init__(self, session: Session, server: Server) -> None:
        self._session = session
        self._server = server
        self._log = RequestLog(server)

    def findings(self, call: Callable[[], object]) -> list[Finding]:
        """Call the kernel again, and return what is wrong with launches unlike those of the calls before it."""
        session = self._session
        known = {self._kind(record.launch) for record in session.launches}
        found: list[Finding] = []
        with self._unordered():
            for number in range(1, 1 + _CALLS):
                first = len(session.launches)
                with self._recorded():
                    try:
                        call()
                    except KernelError:
                        return found  # the checks of outputs call it, too, and report it
                    new = [one for one in session.launches[first:] if self._kind(one.launch) not in known]
                    if new:
                        del session.launches[first:]
                        found += self._executed(new, number, first)
                        known |= {self._kind(one.launch) for one in new}
                del session.launches[first:]
        return found

    def _executed(self, new: list[LaunchRecord], number: int, first: int) -> list[Finding]:
        """Execute the requests of the recorded call, and return what is wrong with its launches."""
        session, faults = self._session, len(self._session.faults)
        names = ", ".join(dict.fromkeys(short_kernel(one.launch.kernel) for one in new))
        where = f"in later call {number} on the same inputs, which launches {names} unlike the calls before it"
        if self._log.incomplete:
            message = f"not checked {where}: {self._log.incomplete}"
            return [Finding("race-warning", message, severity="warning")]
        session.launch_only = False
        with self._log.repeated():
            pass
        found = [worker_finding(fault.finding()) for fault in session.faults[faults:]]
        del session.faults[faults:]
        for record in session.launches[first:]:
            found += map(worker_finding, merge_by_statement(record.findings))
        return [replace(finding, message=f"{finding.message}\n  {where}") for finding in dict.fromkeys(found)]

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Log the requests of a call, and execute none of its launches."""
        before, self._server.observer = self._server.observer, self._log
        self._session.launch_only = True
        self._log.begin()
        try:
            yield
        finally:
            self._log.end()
            self._session.launch_only = False
            self._server.observer = before

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

    def _kind(self, launch: Launch) -> bytes:
        """Return what makes two launches alike: code, sizes, attributes, and parameters but for the addresses."""
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

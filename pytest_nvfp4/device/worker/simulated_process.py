"""The simulator as ``device="cuda"`` of one process of a program, and what it reports there.

Findings and faults are written to standard error by the process that launched the kernel, as soon as the launch has
ended: a pool ends its processes by a signal, and a program may catch the exception of a fault. A launch that still runs
shortly before the program's deadline is reported then. The processes of one program share its folder, in which a file
records that one of them has reported an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Self

from pytest_nvfp4.cores import cores
from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.worker.child_start import BUILT, FOLDER, KEPT, UNRAISED, VARIABLE
from pytest_nvfp4.device.worker.sim_findings import in_order, merge_by_statement, worker_finding
from pytest_nvfp4.device.worker.simulator import simulate
from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.driver.user_line import user_line, user_variable
from pytest_nvfp4.finding import OUTSIDE, UNWRITTEN, UNWRITTEN_SOURCE, Finding
from pytest_nvfp4.host import redirect
from pytest_nvfp4.host.compile_cache import CompileCache, folder_name
from pytest_nvfp4.isolation.limits import DEADLINE_VARIABLE, called_in_time
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.device_memory import ALLOCATION

_DEFAULT_ARCH = "sm_100a"
_DUMP_VARIABLE = "CUTE_DSL_DUMP_DIR"
_MOST_FINDINGS = 50
_FAILED = "failed"
_ONCE = frozenset({"lanes-rounding"})
"""Kinds that are reported once for each line, whatever launch they are in."""
_OF_FAILURES = frozenset({OUTSIDE, UNWRITTEN_SOURCE})
"""Kinds that are reported if the program fails: a result may depend on what they found, or it is padding."""
_FIGURES = re.compile(r"\d+")


def start_in_child(environ: Mapping[str, str]) -> None:
    """Make the simulator the device of this process, until its end, according to the parent's environment."""
    fields = json.loads(environ[VARIABLE])
    SimulatedProcess(Path(fields["folder"]), Simulating.model_validate(fields["settings"])).__enter__()


class SimulatedProcess(contextlib.AbstractContextManager["SimulatedProcess"]):
    """The simulated device of this process.

    Args:
        folder: Folder of the program; its parent processes may write there, too.
        settings: Settings of the simulator.
    """

    def __init__(self, folder: Path, settings: Simulating) -> None:
        self._folder = folder
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._seen = (0, 0)
        self._said: set[tuple[str, str]] = set()
        self._perhaps: list[Finding] = []
        self._forked_after_use = False
        self._overdue = False
        self._at_exit: Finalize | None = None

    def __enter__(self) -> Self:
        wanted = os.environ.get(_DUMP_VARIABLE, "")
        dump = self._folder / f"ptx-{os.getpid()}"
        dump.mkdir(exist_ok=True)
        os.environ.update(redirect.environment(dump, arch=os.environ.get("CUTE_DSL_ARCH") or _DEFAULT_ARCH))
        settings = self._settings
        kept = self._folder / KEPT / folder_name(Path())
        unraised = self._stack.enter_context((self._folder / f"{UNRAISED}-{os.getpid()}").open("w"))
        self._session = self._stack.enter_context(
            simulate(
                on_launch=self._launch,
                unraised=unraised,
                built=CompileCache([kept, self._folder / BUILT], keep=kept, base=self._folder),
                arch=os.environ["CUTE_DSL_ARCH"],
                processes=min(4, cores()),
                schedule=settings.schedule,
                races=settings.races,
                race_warnings=settings.race_warnings,
            )
        )
        if wanted and Path(wanted).parent != self._folder:  # of the user, and not of the parent process
            os.environ[_DUMP_VARIABLE] = wanted
        self._session.memory.allocating = _allocating
        self._session.memory.tracks_writes = settings.races
        self._session.machine.reports_outside = True
        if threading.current_thread() is threading.main_thread():
            deadline = os.environ.get(DEADLINE_VARIABLE)
            self._stack.enter_context(called_in_time(self._report_overdue))
            os.environ.update({} if deadline is None else {DEADLINE_VARIABLE: deadline})  # for its own processes
        os.environ[VARIABLE] = json.dumps({"folder": str(self._folder), "settings": settings.model_dump()})
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *(path for path in paths if path and path != FOLDER)])
        os.register_at_fork(after_in_child=self._forked)
        if not _has_local_sockets():  # the wall refuses them, and a fork server has one
            setattr(ForkServerProcess, "_Popen", staticmethod(SpawnProcess._Popen))  # noqa: B010
        return self

    def __exit__(self, *_: object) -> None:
        self._report()
        self._stack.close()

    @property
    def failed(self) -> bool:
        """Whether a process of the program has reported an error."""
        return (self._folder / _FAILED).exists()

    def explain(self) -> None:
        """Write what a wrong result of the program may depend on, and what is right where it does not."""
        self._say(self._perhaps)

    def _forked(self) -> None:
        self._forked_after_use = bool(self._session.launches)

    def _launch(self, launch: Launch) -> None:
        if self._forked_after_use:
            raise RuntimeError(
                "a kernel is launched in a process that was forked after its parent had launched one: CUDA does not "
                "survive a fork; use multiprocessing's start method 'spawn'"
            )
        session, done = self._session, len(self._session.launches)
        try:
            session.launch(launch)
        except Fault as fault:
            finding = worker_finding(fault.finding())
            self._report([finding])
            first, _, _ = finding.message.partition("\n")
            raise RuntimeError(_place(finding) + first) from None
        finally:
            output = "".join(record.output for record in session.launches[done:])
            if output and sys.stdout is not None:  # None where its descriptor is closed
                sys.stdout.write(output)
                sys.stdout.flush()
            self._report()
            if self._at_exit is None or not self._at_exit.still_active():  # multiprocessing clears it in new processes
                self._at_exit = Finalize(None, self._report, exitpriority=0)

    def _report(self, ended: Sequence[Finding] = ()) -> None:
        """Write the findings since the last call, each statement's once: those of launches, then between streams.

        What has ended a launch stands behind what may be its cause.
        """
        launches, order = self._session.launches, self._session.order
        between = order.findings if order is not None else []
        new = [finding for record in launches[self._seen[0] :] for finding in record.findings]
        new += between[self._seen[1] :]
        self._seen = (len(launches), len(between))
        merged = merge_by_statement(new)
        self._perhaps += [_of_program(finding) for finding in merged if finding.kind in _OF_FAILURES]
        self._say(in_order(ended, [_of_program(finding) for finding in merged if finding.kind not in _OF_FAILURES]))

    def _report_overdue(self) -> None:
        """Write once where the warps are of the launch that runs; a signal handler."""
        running = None if self._overdue else self._session.running
        if running is not None and (fault := running.unended()) is not None:
            self._overdue = True
            self._say([worker_finding(fault.finding())])

    def _say(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            same = finding.kind if finding.kind in _ONCE else _FIGURES.sub("#", finding.message)
            key = (finding.identity, same)
            if key in self._said:
                continue
            self._said.add(key)
            if finding.severity == "error":
                (self._folder / _FAILED).touch()
            if sys.stderr is None:
                continue
            if len(self._said) <= _MOST_FINDINGS:
                source = f"\n    {finding.text}" if finding.text else ""
                sys.stderr.write(f"{_place(finding)}{finding.message}{source}\n")
            elif len(self._said) == _MOST_FINDINGS + 1:
                sys.stderr.write(f"simulated: only the first {_MOST_FINDINGS} findings of a process are written\n")


def _has_local_sockets() -> bool:
    try:
        socket.socket(socket.AF_UNIX).close()
    except OSError:
        return False
    return True


def _of_program(finding: Finding) -> Finding:
    """Return a finding as it is written. A use of an allocation that nothing has written is a warning.

    Without a reference nobody knows whether a result depends on it: kernels read and use padding.
    """
    used = finding.kind == "uninitialised" and ALLOCATION in finding.message
    if not used and finding.kind != UNWRITTEN_SOURCE:
        return worker_finding(finding)
    return replace(worker_finding(replace(finding, kind=UNWRITTEN)), severity="warning")


def _allocating() -> str | None:
    """Return the variable that gets the tensor which is being allocated, if it is one, and the line."""
    line, variable = user_line(), user_variable()
    if line is None:
        return None
    return f"made at {line}" if variable is None else f"{variable}, made at {line}"


def _place(finding: Finding) -> str:
    return f"{Path(finding.file).name}:{finding.line}: " if finding.file is not None else ""

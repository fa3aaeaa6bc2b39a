"""The worker of the simulated device: it holds the simulator and judges nothing, and no code of the kernel runs in it.

It forks the kernel's process first. What it sends to the parent (calls, outputs, counters, findings) comes from its own
memory; what the kernel's process says is at most the text of a finding.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_nvfp4.collection import rare_collection
from pytest_nvfp4.cores import cores
from pytest_nvfp4.device.job import Job, KernelSpec, Simulating
from pytest_nvfp4.device.worker import device_info
from pytest_nvfp4.device.worker.conversation import ConversationLog
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.job_steps import JobSteps, StopError, completed
from pytest_nvfp4.device.worker.kernel_fork import ForkedKernel, fork_kernel
from pytest_nvfp4.device.worker.kernel_stack import stack_file
from pytest_nvfp4.driver.device_model import DeviceModel, for_arch
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host.compile_cache import COMPILED_VARIABLE
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.limits import PARENT_VARIABLE, called_in_time
from pytest_nvfp4.isolation.prctl import die_with_parent
from pytest_nvfp4.isolation.wall import NAMESPACES, WALL_VARIABLE, Wall, enter
from pytest_nvfp4.toolchain.worker.loading import end_imports

if TYPE_CHECKING:
    from pytest_nvfp4.device.worker.kernel_process import KernelProcess
    from pytest_nvfp4.device.worker.simulation import Simulation
    from pytest_nvfp4.sim.debug.debugger import Debugger
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.session import Session


class MachineWorker(JobSteps):
    """Runs one job, from the device's description to the last event.

    Args:
        folder: Folder for sources, scratch files and outputs, shared with the parent.
        forked: The kernel's process.
        compiled: Folders of modules that need not be compiled again.
        commands: Descriptor of the debugger's commands; the kernel's process has none.
    """

    def __init__(
        self, job: Job, folder: Path, events: Events, forked: ForkedKernel, *, compiled: list[str], commands: int
    ) -> None:
        super().__init__(job, folder, events)
        self._forked = forked
        self._compiled = compiled
        self._commands = commands
        self._log: ConversationLog | None = None
        self._arch = job.kernel.arch if job.kernel is not None else "sm_100a"

    def _end(self, status: str, finding: Finding) -> NoReturn:
        """End the job and this process."""
        with contextlib.suppress(StopError):
            self._finish(status, finding)
        self._events.end()
        os._exit(0)

    @property
    def _model(self) -> DeviceModel:
        model, sms = for_arch(self._arch), self._job.simulating.sms
        return model if sms is None else replace(model, sm_count=sms, max_active_clusters={})

    def run(self) -> None:
        """Run the job."""
        torch = self._import_torch()
        self._events.send("device", **device_info.describe_model(torch, self._model))
        if self._job.action == "probe":
            return
        assert self._job.kernel is not None
        self._check(self._job.kernel)
        kernel, simulation = self._start()
        end_imports()
        with called_in_time(partial(self._end_overdue, simulation.session)):
            self._import_kernel(kernel, self._job.kernel)
            self._run(kernel, simulation)

    def _check(self, kernel: KernelSpec) -> None:
        model = self._model
        self._check_arch(kernel, name=model.name, capability=model.capability)
        if kernel.entry is not None and not self._job.given:
            self._refuse_entry()
        if self._job.action == "benchmark":
            self._finish("unavailable", Finding("device", "not run: this device is the CPU, which has no GPU clock"))
        self._write_sources(kernel)

    def _start(self) -> tuple[KernelProcess, Simulation]:
        """Start the simulator, and let it execute the requests of the kernel's process."""
        from pytest_nvfp4.device.worker.attributing import Attributor
        from pytest_nvfp4.device.worker.host_writes import HostWrites
        from pytest_nvfp4.device.worker.kernel_process import KernelProcess
        from pytest_nvfp4.device.worker.later_calls import LaterCalls
        from pytest_nvfp4.device.worker.simulation import Simulation
        from pytest_nvfp4.device.worker.simulator import SimulatorSettings, new_session
        from pytest_nvfp4.device.worker.unknown_reads import UnknownReads
        from pytest_nvfp4.machine.server import Server

        job = self._job
        simulating = job.simulating if job.action == "simulate" else None
        settings = simulating or Simulating()
        self._log = ConversationLog(self._forked.room) if settings.conversation else None
        session = new_session(
            SimulatorSettings(
                arch=self._arch,
                processes=min(4, cores()),
                schedule=settings.schedule,
                races=settings.races,
                race_warnings=settings.race_warnings,
                protocol=settings.protocol,
                recording=settings.recording,
                sampled=settings.sampled,
                ring_ctas=settings.ring_ctas,
                sms=job.simulating.sms,
                detailed=settings.detailed,
                debugger=self._debugger() if settings.debugging else None,
            ),
            room=self._forked.room,
        )
        session.on_cluster = self._show_progress
        assert session.streams is not None
        session.memory.allocating = session.streams.made_at
        session.memory.tracks_writes, session.memory.poison = settings.unwritten, settings.poison
        server = Server(
            session.machine.model,
            session.memory,
            session.streams,
            session.launch,
            variables=session.variables,
            most=job.memory_bytes,
        )
        server.observer = UnknownReads(session) if settings.sampled else HostWrites(session)
        kernel = KernelProcess(
            self._forked,
            server,
            session,
            violated=partial(self._end, "cheated"),
            crashed=lambda finding: self._events.send("finding", **finding.to_dict()),
            log=self._log,
        )
        attributor = Attributor(session, server) if job.action == "verify" or settings.origins else None
        later = LaterCalls(session, server) if settings.later_calls else None
        return kernel, Simulation(
            session, folder=self._folder, simulating=simulating, attributor=attributor, later_calls=later
        )

    def _debugger(self) -> Debugger:
        from pytest_nvfp4.device.worker.debugging import CommandReader
        from pytest_nvfp4.sim.debug.debugger import Debugger

        return Debugger(CommandReader(self._commands, self._events))

    def _show_progress(self, grid: Grid) -> None:
        started, total = grid.progress
        self._events.part(f"CTA {started} of {total}")

    def _end_overdue(self, session: Session) -> None:
        """End the job and this process, a signal handler, if a launch runs: the finding says where its warps are."""
        from pytest_nvfp4.device.worker.sim_findings import worker_finding

        fault = None if session.running is None or self._events.sending else session.running.unended()
        if fault is not None:
            self._end("timeout", worker_finding(fault.finding()))

    def _import_kernel(self, kernel: KernelProcess, spec: KernelSpec) -> None:
        self._events.stage("import kernel")
        self._calling(
            lambda: kernel.load(
                {
                    "folder": str(self._folder),
                    "sources": str(self._sources),
                    "stack": str(stack_file(self._folder / "scratch")),
                    "dump": str(self._folder / "ptx"),
                    "arch": self._arch,
                    "sms": self._job.simulating.sms,
                    "regions": self._job.simulating.regions,
                    "compiled": self._compiled,
                    "main": spec.main,
                    "recorded": spec.recorded,
                    "entry": spec.entry,
                    "compile_options": spec.compile_options,
                    "torch_operators": spec.torch_operators,
                }
            )
        )

    def _calling(self, act: Callable[[], object]) -> None:
        from pytest_nvfp4.device.worker.kernel_process import KernelError

        try:
            act()
        except KernelError as error:
            self._finish("error", error.finding)

    def _run(self, kernel: KernelProcess, simulation: Simulation) -> None:
        from pytest_nvfp4.device.worker.far_end import FarEnd
        from pytest_nvfp4.device.worker.kernel_process import KernelError
        from pytest_nvfp4.device.worker.memory import HostMemory
        from pytest_nvfp4.device.worker.sim_findings import worker_finding
        from pytest_nvfp4.device.worker.verify import CallRunner

        raised: Finding | None = None
        try:
            if self._job.action == "simulate" and self._job.simulating.far_end:
                import torch

                self._events.stage("the far end of a large C")
                findings = FarEnd(torch, simulation.session, kernel).findings()
                self._send_case([worker_finding(finding) for finding in findings])
            else:
                calls = CallRunner(kernel, HostMemory(), self._events, self._folder, simulation=simulation)
                calls.run(self._job)
        except KernelError as error:
            raised = error.finding
        noticed = kernel.end()
        if self._log is not None:
            text = json.dumps(self._log.to_json(), separators=(",", ":"))
            (self._folder / "conversation.json").write_text(text, encoding="utf-8")
            digest = hashlib.sha256(text.encode()).hexdigest()
            self._events.send("conversation", sha256=digest, size=len(text.encode()), file="conversation.json")
        if noticed:
            self._finish("cheated", *(Finding("cheat", message) for message in noticed))
        if raised is not None:
            self._finish("error", raised)

    def _send_case(self, findings: list[Finding]) -> None:
        found = [finding.to_dict() for finding in findings]
        self._events.send("case", call=0, case=0, inputs_before="", inputs_after="", findings=found)


def main() -> NoReturn:
    """Run the job named on the command line, to the end of the process."""
    result = int(taken(RESULT_VARIABLE))
    die_with_parent(int(os.environ.get(PARENT_VARIABLE) or os.getppid()))
    wall = Wall.from_json(taken(WALL_VARIABLE))
    compiled = [folder for folder in os.environ.pop(COMPILED_VARIABLE, "").split(os.pathsep) if folder]
    _, file, folder, _ = sys.argv
    commands = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # the kernel's process inherits standard input  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    forked = fork_kernel(wall, folder=Path(folder))
    events = Events(result)

    def run() -> None:
        # torch's operators and the simulator read what the kernel's process sends: they need no more of this machine.
        enter(replace(wall, without=(*wall.without, *NAMESPACES)))
        job = Job.model_validate_json(Path(file).read_bytes())
        Path(file).unlink()  # it reveals which calls are judged, and their inputs
        with rare_collection():  # one of its own for each launch would end with a collection
            MachineWorker(job, Path(folder), events, forked, compiled=compiled, commands=commands).run()

    completed(events, run)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)

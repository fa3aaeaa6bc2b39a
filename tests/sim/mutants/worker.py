"""Runs mutants in the simulator, in a process of its own, because the DSL reads its environment when it is imported.

``python -m tests.sim.mutants.worker FOLDER KERNEL [NAME...]`` compiles a kernel once, runs it unchanged, and then every
mutant of it (or those named) in the schedules that it says, with ``--everything`` in all. One line of JSON each:
``MUTANT {...}``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.monitor import Monitor
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Asynchronous, Eager, Lazy
from pytest_nvfp4.sim.run.programs import Programs
from tests.sim.mutants import corpus
from tests.sim.mutants.mutate import Listing

SCHEDULES: dict[str, Callable[[], Asynchronous]] = {
    "eager": Eager,
    "lazy": partial(Lazy, patient=False),
    "races": Eager,
}
"""``races`` is the eager schedule with a happens-before analysis beside it."""


class Swapped(Programs):
    """Programs of PTX that was changed on its way to the simulator; the unchanged ones are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.change: Callable[[str, str], str] | None = None
        self.seen: dict[str, str] = {}

    def get(
        self, ptx: str, kernel: str, *, monitor: Monitor | None = None, counted: bool = False, stepped: bool = False
    ) -> Program:
        """The program of a kernel, mutated if ``change`` says so."""
        self.seen[kernel] = ptx
        changed = ptx if self.change is None else self.change(ptx, kernel)
        programs = super() if changed == ptx else Programs()
        return programs.get(changed, kernel, monitor=monitor, counted=counted, stepped=stepped)


class Bench:
    """One kernel, one problem, one set of buffers."""

    def __init__(self, path: Path, *, arch: str, folder: Path, problem: Problem, family: str) -> None:
        import torch

        from pytest_nvfp4.device.worker.buffers import CallBuffers
        from pytest_nvfp4.device.worker.memory import HostMemory
        from pytest_nvfp4.device.worker.simulation import Simulation
        from pytest_nvfp4.device.worker.simulator import simulate
        from pytest_nvfp4.numerics.families import family as family_of
        from pytest_nvfp4.numerics.judge import Reference
        from pytest_nvfp4.toolchain.worker import contract
        from pytest_nvfp4.toolchain.worker.loading import load

        self._stack = contextlib.ExitStack()
        self.session = self._stack.enter_context(simulate(arch=arch))
        self.simulation = Simulation(self.session, folder=folder)
        self.session.processes = 1
        self.programs = Swapped()
        self.session.programs = self.programs
        contract.provide_task()
        self.module = load(path)
        self.inputs = family_of(family).generate(problem)
        self.slot = CallBuffers(torch, self.inputs)
        self.memory = HostMemory()
        self.references = [Reference.of(group.exact()) for group in self.inputs.groups]

    def close(self) -> None:
        """Restore torch and the DSL."""
        self._stack.close()

    def run(self, schedule: str) -> dict[str, Any]:
        """What a run of the kernel, as ``programs.change`` makes it, finds and computes."""
        machine = self.session.machine
        machine.asynchronous = SCHEDULES[schedule]()
        machine.monitor = Detector(warnings=True) if schedule == "races" else None
        self.slot.fill(self.memory, self.inputs)
        (data,), _ = self.slot.arguments()
        found: list[Any] = []
        self.session.launches.clear()
        with self.simulation.call(self.slot, found):
            self.module.custom_kernel(data)
        counters: Counter[str] = sum((record.counters for record in self.session.launches), Counter())
        return {
            "findings": [
                {"kind": one.kind, "severity": one.severity, "line": one.line, "text": one.text, "message": one.message}
                for one in found
            ],
            "wrong": [text for text in self._judged() if text],
            "counters": dict(counters),
        }

    def _judged(self) -> Iterator[str]:
        import numpy as np

        from pytest_nvfp4.numerics.judge import judge

        for index, (buffers, group) in enumerate(zip(self.slot.outputs, self.inputs.groups, strict=True)):
            raw = np.frombuffer(buffers.read(self.memory), np.uint16).reshape(group.c_buffer().shape)
            before, c, after = group.split_c(raw)
            verdict = judge(
                c,
                self.references[index],
                group=index,
                guard_before=before,
                guard_after=after,
                poison=group.guard.poison,
            )
            yield "" if verdict.ok else str(verdict)

    def mutants(self, kernel: corpus.Subject, mutants: list[corpus.Mutant], *, everything: bool) -> None:
        """Run them all and say so."""
        baseline = {schedule: self.run(schedule) for schedule in SCHEDULES}
        _say({"name": "", "kernel": kernel.name, **baseline})
        own = {(one["kind"], one["line"]) for run in baseline.values() for one in run["findings"]}
        listings: dict[str, Listing] = {}

        def listing(part: str) -> Listing:
            if part not in listings:
                (ptx,) = {ptx for name, ptx in self.programs.seen.items() if part in name}
                listings[part] = Listing(ptx, part)
            return listings[part]

        for mutant in mutants:
            shown = SCHEDULES if everything else mutant.expected
            said: dict[str, Any] = {"name": mutant.name, "kernel": kernel.name}
            try:
                original = listing(mutant.kernel)
                changed = original.edited(mutant.mutate(original))
                self.programs.change = lambda ptx, name, o=original, c=changed: c if name == o.name else ptx
                for schedule in shown:
                    said[schedule] = self.run(schedule)
                    said[schedule]["findings"] = [
                        one
                        for one in said[schedule]["findings"]
                        if one["severity"] == "error" or (one["kind"], one["line"]) not in own
                    ]
                    counters = said[schedule].pop("counters")
                    before = baseline[schedule]["counters"]
                    said[schedule]["counters"] = {
                        key: [before.get(key, 0), counters.get(key, 0)]
                        for key in sorted({*before, *counters})
                        if before.get(key, 0) != counters.get(key, 0)
                    }
            except Exception:
                said["error"] = traceback.format_exc()
            finally:
                self.programs.change = None
            _say(said)


def _say(said: dict[str, Any]) -> None:
    print("MUTANT " + json.dumps(said), flush=True)  # noqa: T201


def main() -> None:
    folder, name, *chosen = sys.argv[1:]
    everything = "--everything" in chosen
    subject = corpus.SUBJECTS[name]
    os.environ.update(redirect.environment(Path(folder), arch=subject.arch))
    path = subject.copy(Path(folder))
    bench = Bench(path, arch=subject.arch, folder=Path(folder), problem=subject.problem, family=subject.family)
    names = frozenset(chosen) - {"--everything"}
    mutants = [mutant for mutant in subject.mutants if not names or mutant.name in names]
    with contextlib.ExitStack() as stack:
        stack.callback(bench.close)
        bench.mutants(subject, mutants, everything=everything)
        gc.collect()


if __name__ == "__main__":
    main()

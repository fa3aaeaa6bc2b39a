"""What a run need not simulate twice: results of its own, and those that earlier runs kept.

Checks come to the same case from several sides (a problem's coverage and its cost, a schedule that was tried before),
in one test process or in several; the threads of ``background`` come here too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.result_cache import ResultKeys, SimulationCache, VerdictCache
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.device.verify import Verification
    from pytest_nvfp4.plugin.device_options import DeviceOptions

KernelKey = tuple[str, str, str]
"""What tells kernels apart within a run: files, architecture, compile options."""


def kernel_key(kernel: KernelSpec) -> KernelKey:
    """What tells a kernel from others within a run."""
    return (kernel.sha256, kernel.arch, " ".join(kernel.compile_options))


class Simulations:
    """The simulated cases of a run.

    Args:
        config: The run's.
        options: What the user asked for.
        simulator: Gives the simulator.
        jobs: Gives the folder where the files of jobs go.
        shared: Other test processes of this run work on the same items.
    """

    def __init__(
        self,
        config: pytest.Config,
        options: DeviceOptions,
        *,
        simulator: Callable[[], Device],
        jobs: Callable[[], Path],
        shared: bool,
    ) -> None:
        self._config = config
        self._options = options
        self._simulator = simulator
        self._jobs = jobs
        self._shared = shared
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, KernelKey], threading.Lock] = {}
        self._simulated: dict[KernelKey, dict[JobCase, SimulationResult]] = {}
        self._raced: dict[tuple[KernelKey, JobCase, str], SimulationResult | None] = {}
        self._races: dict[str, VerdictCache] = {}
        self.recalled = 0
        """Cases that were not simulated again."""

    # what earlier runs kept

    @cached_property
    def _root(self) -> Path:
        from pytest_nvfp4.plugin.state import RUN

        return self._config.stash[RUN].cache.root

    @cached_property
    def _keys(self) -> ResultKeys:
        from pytest_nvfp4.device.result_cache import ResultKeys

        return ResultKeys()

    @cached_property
    def _kept_verdicts(self) -> VerdictCache:
        return self._verdicts(self._root)

    @cached_property
    def _kept_simulations(self) -> SimulationCache:
        from pytest_nvfp4.device.result_cache import SimulationCache

        kept = SimulationCache(self._root, keys=self._keys)
        self._config.add_cleanup(kept.prune)
        return kept

    def _kept_races(self, part: str) -> VerdictCache:
        with self._lock:
            if part not in self._races:
                self._races[part] = self._verdicts(self._root / part)
            return self._races[part]

    def _verdicts(self, root: Path) -> VerdictCache:
        from pytest_nvfp4.device.result_cache import VerdictCache

        kept = VerdictCache(root, keys=self._keys)
        self._config.add_cleanup(kept.prune)
        return kept

    def _note_recalled(self) -> None:
        with self._lock:
            self.recalled += 1

    @contextlib.contextmanager
    def one_at_a_time(self, what: str, kernel: KernelSpec) -> Iterator[None]:
        """Hold the right to find something out of a kernel, so that two threads do not do the same."""
        with self._lock:
            lock = self._locks.setdefault((what, kernel_key(kernel)), threading.Lock())
        with lock:
            yield

    # verify

    def recall(self, kernel: KernelSpec, cases: Sequence[JobCase]) -> dict[JobCase, Verification]:
        """The cases that are known to pass in the simulator."""
        from pytest_nvfp4.device.verdict import CaseVerdict
        from pytest_nvfp4.device.verify import Verification

        known: dict[JobCase, Verification] = {}
        if self._options.fresh:
            return known
        info = self._simulator().describe()
        for case in cases:
            if self._kept_verdicts.has(kernel, case):
                known[case] = Verification((CaseVerdict(case, "passed"),), info, 0, "", "")
                self._note_recalled()
        return known

    def keep(self, kernel: KernelSpec, done: Verification) -> None:
        """Keep what passed in the simulator."""
        if done.device is None or not done.device.simulated:
            return
        for verdict in done.verdicts:
            if verdict.status == "passed" and not verdict.findings:
                self._kept_verdicts.add(kernel, verdict.case)

    # simulate

    def simulate(
        self, kernel: KernelSpec, wanted: JobCase, *, others: Sequence[JobCase], base: Path
    ) -> SimulationResult:
        """What a kernel does on a case, run once in the simulator, or known from an earlier run of the same.

        Args:
            kernel: The kernel, of an architecture that the simulator knows.
            wanted: The case.
            others: Further cases that will be asked for in this process: they run in the same job.
            base: The folder the kernel's files are relative to.
        """
        with self.one_at_a_time("simulate", kernel):
            known = self._simulated.setdefault(kernel_key(kernel), {})
            if wanted in known:
                return known[wanted]
            if not self._shared:
                self._simulate(kernel, [wanted, *others], base=base, known=known)
                return known[wanted]
            # Of two test processes that come to the same case, the second waits and is told.
            from filelock import FileLock

            with FileLock(self._kept_simulations.lock(kernel, wanted)):
                self._simulate(kernel, [wanted, *others], base=base, known=known)
            return known[wanted]

    def _simulate(
        self, kernel: KernelSpec, cases: Sequence[JobCase], *, base: Path, known: dict[JobCase, SimulationResult]
    ) -> None:
        from pytest_nvfp4.device.simulate import simulate

        kept = self._kept_simulations
        lacking = [case for case in dict.fromkeys(cases) if case not in known]
        if not self._options.fresh and self._options.trace is None:
            for case in lacking:
                if (found := kept.get(kernel, case)) is not None:
                    known[case] = found
                    self._note_recalled()
            lacking = [case for case in lacking if case not in known]
        if not lacking:
            return
        done = simulate(
            self._simulator(),
            kernel,
            lacking,
            folder=self._jobs(),
            base=base,
            deadline_s=self._options.timeout_s,
            trace_ctas=self._options.trace_ctas if self._options.trace is not None else 0,
        )
        for one in done:
            known[one.case] = one
            kept.add(kernel, one)

    # races

    def races(self, kernel: KernelSpec, case: JobCase, schedule: str, *, base: Path) -> SimulationResult | None:
        """A case under a schedule, watched for races; None where that is known to pass.

        The kernel's architecture is one that the simulator knows.
        """
        with self.one_at_a_time(f"races of {case.problem.name}, {schedule}", kernel):
            key = (kernel_key(kernel), case, schedule)
            if key not in self._raced:
                self._raced[key] = self._race(kernel, case, schedule, base=base)
            return self._raced[key]

    def _race(self, kernel: KernelSpec, case: JobCase, schedule: str, *, base: Path) -> SimulationResult | None:
        from pytest_nvfp4.device.simulate import simulate

        warnings = self._options.race_warnings
        kept = self._kept_races(f"races-{schedule}" + ("-warnings" if warnings else ""))
        if not self._options.fresh and kept.has(kernel, case):
            self._note_recalled()
            return None
        (done,) = simulate(
            self._simulator(),
            kernel,
            [case],
            folder=self._jobs(),
            base=base,
            deadline_s=self._options.timeout_s,
            outputs=kernel.entry is None,
            races=True,
            race_warnings=warnings,
            schedule=schedule,
        )
        if done.status == "passed" and not done.findings:
            kept.add(kernel, case)
        return done

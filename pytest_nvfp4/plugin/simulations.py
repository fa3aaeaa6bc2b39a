"""Cache of simulations: results of this run, and results that earlier runs stored on disk.

Several checks require the same simulation (coverage and cost of one problem; a schedule that was tried before), in one
test process or in several, and on the threads of `background`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.devices import Devices
from pytest_nvfp4.plugin.state import RUN

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.result_cache import ResultKeys, SimulationCache, VerdictCache
    from pytest_nvfp4.device.simulate import SimulationResult


class Simulations:
    """The simulations of a run."""

    def __init__(self, config: pytest.Config, devices: Devices) -> None:
        self._config = config
        self._devices = devices
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, KernelSpec], threading.Lock] = {}
        self._simulated: dict[KernelSpec, dict[JobCase, SimulationResult]] = {}
        self._raced: dict[tuple[KernelSpec, JobCase, str], SimulationResult | None] = {}
        self._verdicts: dict[str, VerdictCache] = {}
        self.cache_hits = 0
        """Number of cases whose result an earlier run stored."""

    @cached_property
    def _root(self) -> Path:
        return self._config.stash[RUN].cache.root

    @cached_property
    def _keys(self) -> ResultKeys:
        from pytest_nvfp4.device.result_cache import ResultKeys

        return ResultKeys()

    @cached_property
    def _stored(self) -> SimulationCache:
        from pytest_nvfp4.device.result_cache import SimulationCache

        stored = SimulationCache(self._root, keys=self._keys)
        self._config.add_cleanup(stored.prune)
        return stored

    def verdicts(self, part: str) -> VerdictCache:
        """Return the cache of the cases that passed, of one part of the cache folder; an empty part is its root."""
        from pytest_nvfp4.device.result_cache import VerdictCache

        with self._lock:
            if part not in self._verdicts:
                self._verdicts[part] = VerdictCache(self._root / part, keys=self._keys)
                self._config.add_cleanup(self._verdicts[part].prune)
            return self._verdicts[part]

    def lookup(self, part: str, kernel: KernelSpec, case: JobCase) -> bool:
        """Return whether an earlier run stored that a case passed, and count the cache hit."""
        hit = not self._devices.options.fresh and self.verdicts(part).has(kernel, case)
        with self._lock:
            self.cache_hits += hit
        return hit

    @contextlib.contextmanager
    def locked(self, what: str, kernel: KernelSpec) -> Iterator[None]:
        """Hold the lock on one computation for a kernel, so that two threads do not both do it."""
        with self._lock:
            lock = self._locks.setdefault((what, kernel), threading.Lock())
        with lock:
            yield

    def simulate(self, kernel: KernelSpec, case: JobCase, *, others: Sequence[JobCase], base: Path) -> SimulationResult:
        """Return what a kernel does on a case, simulated once or stored by an earlier run.

        If the simulator does not support the architecture, the calling test is skipped or fails.

        Args:
            kernel: The kernel.
            case: The case.
            others: Cases that this process requires later: they run in the same job.
            base: The folder that the kernel's files are relative to.
        """
        from filelock import FileLock

        self._devices.require_simulator(kernel.arch)
        with self.locked("simulate", kernel):
            known = self._simulated.setdefault(kernel, {})
            if case not in known:
                # If two test processes require one case, the second waits here and then reads the stored result.
                shared = self._devices.shared
                with FileLock(self._stored.lock(kernel, case)) if shared else contextlib.nullcontext():
                    self._simulate(kernel, [case, *others], base=base, known=known)
            return known[case]

    def _simulate(
        self, kernel: KernelSpec, cases: Sequence[JobCase], *, base: Path, known: dict[JobCase, SimulationResult]
    ) -> None:
        from pytest_nvfp4.device.simulate import simulate

        options = self._devices.options
        missing = [case for case in dict.fromkeys(cases) if case not in known]
        if not options.fresh and options.trace is None:  # a stored result has no timeline
            for case in missing:
                if (stored := self._stored.get(kernel, case)) is not None:
                    known[case] = stored
            new = [case for case in missing if case not in known]
            with self._lock:
                self.cache_hits += len(missing) - len(new)
            missing = new
        if not missing:
            return
        done = simulate(
            self._devices.simulator,
            kernel,
            missing,
            folder=self._devices.jobs,
            base=base,
            deadline_s=options.timeout_s,
            trace_ctas=options.trace_ctas if options.trace is not None else 0,
        )
        for result in done:
            known[result.case] = result
            self._stored.add(kernel, result)

    def races(
        self, kernel: KernelSpec, case: JobCase, schedule: str, *, warnings: bool, base: Path
    ) -> SimulationResult | None:
        """Return the result of a case under a schedule, checked for races; None if it is known to pass.

        If the simulator does not support the architecture, the calling test is skipped or fails.
        """
        self._devices.require_simulator(kernel.arch)
        with self.locked(f"races of {case.problem.name}, {schedule}", kernel):
            key = kernel, case, schedule
            if key not in self._raced:
                self._raced[key] = self._race(kernel, case, schedule, warnings=warnings, base=base)
            return self._raced[key]

    def _race(
        self, kernel: KernelSpec, case: JobCase, schedule: str, *, warnings: bool, base: Path
    ) -> SimulationResult | None:
        from pytest_nvfp4.device.simulate import simulate

        part = f"races-{schedule}" + ("-warnings" if warnings else "")
        if self.lookup(part, kernel, case):
            return None
        (done,) = simulate(
            self._devices.simulator,
            kernel,
            [case],
            folder=self._devices.jobs,
            base=base,
            deadline_s=self._devices.options.timeout_s,
            outputs=kernel.entry is None,
            races=True,
            race_warnings=warnings,
            schedule=schedule,
        )
        if done.status == "passed" and not done.findings:
            self.verdicts(part).add(kernel, case)
        return done


SIMULATIONS = pytest.StashKey[Simulations]()

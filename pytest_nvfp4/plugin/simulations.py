"""Cache of simulations: results of this run, and results that earlier runs stored on disk.

Several checks require the same simulation (coverage and cost of one problem; a schedule that was tried before), in one
test process or in several, and on the threads of `background`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.devices import Devices
from pytest_nvfp4.plugin.state import RUN

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.modelled import ModelledCall
    from pytest_nvfp4.device.result_cache import ResultKeys, SimulationCache, VerdictCache
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.model.constants import DeviceConstants
    from pytest_nvfp4.model.replay import Conditions
    from pytest_nvfp4.toolchain.sealed_files import SealedFiles


_EAGER = "eager"
_FAR_END = "far-end"
"""Part of the verdict cache: kernels without offsets that overflow 32 bits."""


class Simulations:
    """The simulations of a run."""

    def __init__(self, config: pytest.Config, devices: Devices) -> None:
        self._config = config
        self._devices = devices
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, KernelSpec], threading.Lock] = {}
        self._simulated: dict[KernelSpec, dict[JobCase, SimulationResult]] = {}
        self._raced: dict[tuple[KernelSpec, JobCase, str, int | None], SimulationResult] = {}
        self._far_ends: dict[KernelSpec, list[Finding] | None] = {}
        self._observations: dict[str, SimulationCache] = {}
        self._verdicts: dict[str, VerdictCache] = {}
        self.cache_hits = 0
        """Number of cases whose result an earlier run stored."""

    @cached_property
    def _detailed(self) -> bool:
        """Whether simulations record what a page draws."""
        return self._config.stash[RUN].options.html is not None

    @cached_property
    def _sealed(self) -> SealedFiles:
        return self._config.stash[RUN].cache.sealed

    @cached_property
    def _keys(self) -> ResultKeys:
        from pytest_nvfp4.device.result_cache import ResultKeys

        return ResultKeys()

    @cached_property
    def _stored(self) -> SimulationCache:
        from pytest_nvfp4.device.result_cache import SimulationCache

        stored = SimulationCache(self._sealed, keys=self._keys)
        self._config.add_cleanup(stored.prune)
        return stored

    def verdicts(self, part: str) -> VerdictCache:
        """Return the cache of the cases that passed, of one part of the caches; an empty part is that of `verify`."""
        from pytest_nvfp4.device.result_cache import VerdictCache

        with self._lock:
            if part not in self._verdicts:
                self._verdicts[part] = VerdictCache(self._sealed, name=part or None, keys=self._keys)
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

    def simulate(
        self,
        kernel: KernelSpec,
        case: JobCase,
        *,
        others: Sequence[JobCase],
        raced: Sequence[JobCase] = (),
        base: Path,
    ) -> SimulationResult:
        """Return what a kernel does on a case, simulated once or stored by an earlier run.

        If the simulator does not support the architecture, the calling test is skipped or fails.

        Args:
            kernel: The kernel.
            case: The case.
            others: Cases that this process requires later: they run in the same job.
            raced: Cases that this process searches for races in the eager schedule, without warnings. A search without
                findings records what a simulation does.
            base: The folder that the kernel's files are relative to.
        """
        from pytest_nvfp4.toolchain.entry_lock import entry_lock

        self._devices.require_simulator(kernel.arch)
        with self.locked("simulate", kernel):
            known = self._simulated.setdefault(kernel, {})
            if case not in known:
                # If two test processes require one case, the second waits here and then reads the stored result.
                shared = self._devices.shared
                with entry_lock(self._stored.lock(kernel, case)) if shared else contextlib.nullcontext():
                    self._simulate(kernel, [case, *others], raced=raced, base=base, known=known)
            return known[case]

    def _simulate(
        self,
        kernel: KernelSpec,
        cases: Sequence[JobCase],
        *,
        raced: Sequence[JobCase],
        base: Path,
        known: dict[JobCase, SimulationResult],
    ) -> None:
        from pytest_nvfp4.device.simulate import simulate

        options = self._devices.options
        missing = [case for case in dict.fromkeys(cases) if case not in known]
        if not options.fresh and options.trace is None:  # a stored result has no timeline
            for case in missing:
                stored = self._stored.get(kernel, case)
                if stored is not None and self._shows(stored):
                    known[case] = stored
            new = [case for case in missing if case not in known]
            with self._lock:
                self.cache_hits += len(missing) - len(new)
            missing = new
        for case in [case for case in missing if case in raced]:
            searched = self.races(kernel, case, _EAGER, warnings=False, base=base)
            if _without_findings(searched) and self._shows(searched):
                known[case] = searched
                self._stored.add(kernel, searched)
        missing = [case for case in missing if case not in known]
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
            later_calls=True,
            detailed=self._detailed,
        )
        for result in done:
            known[result.case] = result
            self._stored.add(kernel, result)

    def _shows(self, done: SimulationResult) -> bool:
        """Return whether a stored result has what the reports of this run draw."""
        return not self._detailed or done.call is None or done.call.detailed

    def observe(
        self,
        kernel: KernelSpec,
        cases: Sequence[JobCase],
        *,
        launch_only: tuple[int, ...] = (),
        sms: int | None = None,
        raced: bool = False,
        base: Path,
    ) -> list[SimulationResult]:
        """Return what a kernel does on each case, with its rings; results of earlier runs are looked up on disk.

        If the simulator does not support the architecture, the calling test is skipped or fails.

        Args:
            kernel: The kernel.
            cases: The cases, which are simulated in one job.
            launch_only: Indices of cases whose launches are recorded and not executed.
            sms: SMs of the simulated device; None for those of the product.
            raced: Whether a single case that is executed is searched for races in the eager schedule, for ``races``.
            base: The folder that the kernel's files are relative to.
        """
        from pytest_nvfp4.toolchain.entry_lock import entry_lock

        self._devices.require_simulator(kernel.arch)
        stored = [self._observed("launches" if at in launch_only else "rings", sms) for at in range(len(cases))]
        lock = entry_lock(stored[0].lock(kernel, cases[0])) if self._devices.shared else contextlib.nullcontext()
        with lock:
            fresh = self._devices.options.fresh
            found = [None if fresh else cache.get(kernel, case) for cache, case in zip(stored, cases, strict=True)]
            with self._lock:
                self.cache_hits += sum(result is not None for result in found)
            missing = [at for at, result in enumerate(found) if result is None]
            if missing:
                run = partial(self._run_rings, kernel, cases, launch_only=launch_only, sms=sms, base=base)
                executed = [at for at in missing if at not in launch_only]
                races = raced and len(executed) == 1
                done = dict(zip(missing, run(missing, races=races), strict=True))
                if races:
                    (at,) = executed
                    self._raced[kernel, cases[at], _EAGER, sms] = done[at]
                    if _without_findings(done[at]):
                        self._observed(f"races-{_EAGER}", sms).add(kernel, done[at])
                    else:
                        (done[at],) = run(executed, races=False)
                for at, result in done.items():
                    stored[at].add(kernel, result)
                    found[at] = result
        return [result for result in found if result is not None]

    def _run_rings(
        self,
        kernel: KernelSpec,
        cases: Sequence[JobCase],
        missing: Sequence[int],
        *,
        launch_only: tuple[int, ...] = (),
        sms: int | None,
        races: bool,
        schedule: str = _EAGER,
        warnings: bool = False,
        base: Path,
    ) -> list[SimulationResult]:
        from pytest_nvfp4.device.fitted_problem import RING_CTAS
        from pytest_nvfp4.device.simulate import simulate

        return simulate(
            self._devices.simulator,
            kernel,
            [cases[at] for at in missing],
            folder=self._devices.jobs,
            base=base,
            deadline_s=self._devices.options.timeout_s,
            ring_ctas=RING_CTAS,
            outputs=races,
            races=races,
            race_warnings=warnings,
            schedule=schedule,
            later_calls=races,
            launch_only=tuple(place for place, at in enumerate(missing) if at in launch_only),
            sms=sms,
            detailed=self._detailed,
        )

    def _observed(self, part: str, sms: int | None) -> SimulationCache:
        """Return the cache of observed calls, of a part of the cache folder for each SM count."""
        from pytest_nvfp4.device.result_cache import SimulationCache

        name = _part(part, sms)
        with self._lock:
            if name not in self._observations:
                self._observations[name] = SimulationCache(self._sealed, name=name, keys=self._keys)
                self._config.add_cleanup(self._observations[name].prune)
            return self._observations[name]

    def races(
        self, kernel: KernelSpec, case: JobCase, schedule: str, *, warnings: bool, sms: int | None = None, base: Path
    ) -> SimulationResult:
        """Return the result of a case under a schedule, checked for races, with its rings.

        If the simulator does not support the architecture, the calling test is skipped or fails.
        """
        self._devices.require_simulator(kernel.arch)
        with self.locked(f"races of {case.problem.name}, {schedule}, {sms}", kernel):
            key = kernel, case, schedule, sms
            if key not in self._raced:
                self._raced[key] = self._race(kernel, case, schedule, warnings=warnings, sms=sms, base=base)
            return self._raced[key]

    def _race(
        self, kernel: KernelSpec, case: JobCase, schedule: str, *, warnings: bool, sms: int | None, base: Path
    ) -> SimulationResult:
        passed = self._observed(f"races-{schedule}" + ("-warnings" if warnings else ""), sms)
        if not self._devices.options.fresh and (stored := passed.get(kernel, case)) is not None:
            with self._lock:
                self.cache_hits += 1
            return stored
        (done,) = self._run_rings(
            kernel, [case], [0], sms=sms, races=True, schedule=schedule, warnings=warnings, base=base
        )
        if _without_findings(done):
            passed.add(kernel, done)
        return done

    def far_end(self, kernel: KernelSpec, *, base: Path) -> list[Finding] | None:
        """Return the overflow of an offset in a C of more than 2^32 bytes, if there is one.

        The result is None if the kernel did not run to its end. A run that finds nothing is stored for later runs.
        """
        from pytest_nvfp4.device import far_end

        with self.locked("far end", kernel):
            if kernel not in self._far_ends:
                found: list[Finding] | None = []
                if not self.lookup(_FAR_END, kernel, far_end.CASE):
                    found = far_end.overflows(self._devices.simulator, kernel, folder=self._devices.jobs, base=base)
                    if found == []:
                        self.verdicts(_FAR_END).add(kernel, far_end.CASE)
                self._far_ends[kernel] = found
            return self._far_ends[kernel]

    def modelled(
        self,
        kernel: KernelSpec,
        case: JobCase,
        device: DeviceConstants,
        conditions: Conditions,
        *,
        base: Path,
        without_accepted: Callable[[SimulationResult], SimulationResult] = lambda done: done,
    ) -> ModelledCall | SimulationResult:
        """Return the modelled time of a case, or the simulation if it did not pass.

        One with accepted errors alone, behind which the call went on, is modelled each time anew, so that they are
        seen and judged each time.

        If the simulator does not support the architecture, the calling test is skipped or fails.
        """
        from pytest_nvfp4.device.modelled import modelled_call, recordings_of
        from pytest_nvfp4.device.result_cache import ModelledCache
        from pytest_nvfp4.device.simulate import simulate
        from pytest_nvfp4.toolchain.cache import content_key

        self._devices.require_simulator(kernel.arch)
        table = content_key({"table": device.digest, "conditions": repr(conditions)})
        stored = ModelledCache(self._sealed, name=f"modelled-{device.name}-{table[:16]}", keys=self._keys)
        with self.locked(f"model {case.problem.name}", kernel):
            known = None if self._devices.options.fresh else stored.get(kernel, case)
            if known is not None and (known.timeline or known.refused or not self._detailed):
                with self._lock:
                    self.cache_hits += 1
                return known
            (done,) = simulate(
                self._devices.simulator,
                kernel,
                [case],
                folder=self._devices.jobs,
                base=base,
                deadline_s=self._devices.options.timeout_s,
                recording=True,
                sampled=True,
            )
            left = without_accepted(done)
            accepted = done.status == "failed" and len(left.findings) < len(done.findings) and not left.errors
            if not accepted and (done.errors or done.status != "passed"):
                return left
            call = modelled_call(recordings_of(done), device, conditions, timeline=self._detailed)
            if accepted:
                return call
            stored.add(kernel, case, call)
            self._config.add_cleanup(stored.prune)
            return call


def _without_findings(done: SimulationResult) -> bool:
    return done.status == "passed" and not done.findings


def _part(name: str, sms: int | None) -> str:
    """Return the part of the cache folder for results on the product (None) or on a device of fewer SMs."""
    return name if sms is None else f"{name}-{sms}sms"


SIMULATIONS = pytest.StashKey[Simulations]()

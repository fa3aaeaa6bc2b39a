"""Cache of verifications: the verdicts of this run, and cases that are known to pass in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.devices import Devices
from pytest_nvfp4.plugin.simulations import Simulations

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.verify import Verification, Verifier


class Verifications:
    """The verifications of a run. The verdict cache of the simulations holds the cases that pass in the simulator."""

    def __init__(self, devices: Devices, simulations: Simulations) -> None:
        self._devices = devices
        self._simulations = simulations
        self._verifiers: dict[str, Verifier] = {}
        self._known: dict[tuple[KernelSpec, int | None], dict[JobCase, Verification]] = {}

    def verifier(self, arch: str) -> Verifier:
        """Return the verifier of the device for an architecture; without a device, skip or fail the calling test."""
        from pytest_nvfp4.device.verify import Verifier

        device = self._devices.device(arch)
        if device.name not in self._verifiers:
            self._verifiers[device.name] = Verifier(
                device, folder=self._devices.jobs, deadline_s=self._devices.options.timeout_s
            )
        return self._verifiers[device.name]

    def verify(
        self,
        kernel: KernelSpec,
        cases: Sequence[JobCase],
        *,
        others: Sequence[JobCase],
        batch: str = "",
        sms: int | None = None,
        base: Path,
    ) -> list[Verification]:
        """Return the verification that each case is part of.

        Args:
            kernel: The kernel.
            cases: The cases.
            others: Further cases of the same job: those that this process requires later, or for a remote all cases
                of the job that was sent ahead.
            batch: Name of the cases of the job: two batches have no case in common, and run at the same time.
            sms: SMs of the device if it is simulated; None for those of the product.
            base: The folder that the kernel's files are relative to.
        """
        simulated = self._devices.device(kernel.arch).name == "sim"
        sms = sms if simulated else None
        part = "" if sms is None else f"verdicts-{sms}sms"
        with self._simulations.locked(f"verification {batch} {part}", kernel):
            known = self._known.setdefault((kernel, sms), {})
            # A remote matches a job with one that was sent ahead by its cases, so their order must not depend on
            # which item comes first.
            ordered = [*others, *cases] if self._devices.remote is not None else [*cases, *others]
            missing = [case for case in dict.fromkeys(ordered) if case not in known]
            if any(case in missing for case in cases):
                if simulated and self._devices.options.seed is None:
                    # A remote has been sent all cases of a job, unless all of them are known.
                    if self._devices.remote is None or self.known_to_pass(kernel, missing, part=part):
                        known.update(self._lookup(part, kernel, missing))
                    missing = [case for case in missing if case not in known]
                if missing:
                    done = self.verifier(kernel.arch).verify(
                        kernel, missing, base=base, order_seed=self._devices.options.seed, sms=sms
                    )
                    known.update(dict.fromkeys(missing, done))
                    self._store(part, kernel, done)
            return [known[case] for case in cases]

    def known_to_pass(self, kernel: KernelSpec, cases: Sequence[JobCase], *, part: str = "") -> bool:
        """Return whether an earlier run stored that every case passed in the simulator, and may be believed."""
        options = self._devices.options
        if options.fresh or options.seed is not None or self._devices.device(kernel.arch).name != "sim":
            return False
        return all(self._simulations.verdicts(part).has(kernel, case) for case in cases)

    def _lookup(self, part: str, kernel: KernelSpec, cases: Sequence[JobCase]) -> dict[JobCase, Verification]:
        """Return the cases that are known to pass in the simulator, in a part of the verdict cache."""
        from pytest_nvfp4.device.verdict import CaseVerdict
        from pytest_nvfp4.device.verify import Verification

        info = self._devices.simulator.describe()
        return {
            case: Verification((CaseVerdict(case, "passed"),), info, 0, "", "")
            for case in cases
            if self._simulations.lookup(part, kernel, case)
        }

    def _store(self, part: str, kernel: KernelSpec, done: Verification) -> None:
        # With a seed that the user names, the kernel's author may have known the inputs.
        if done.device is None or not done.device.simulated or self._devices.options.seed is not None:
            return
        for verdict in done.verdicts:
            if verdict.status == "passed" and not verdict.findings:
                self._simulations.verdicts(part).add(kernel, verdict.case, order_seed=done.order_seed)


VERIFICATIONS = pytest.StashKey[Verifications]()

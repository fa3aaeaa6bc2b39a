"""The ``nvfp4_kernel`` fixture: kernels that a user's tests run on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.verify import Verification
from pytest_nvfp4.numerics.families import FAMILIES, default_families
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.state import KernelCase, Run
from pytest_nvfp4.plugin.verifications import Verifications
from pytest_nvfp4.problem import ProblemError


@dataclass(frozen=True)
class RunnableKernel:
    """A kernel that a test runs on the device of the run."""

    _run: Run
    _verifications: Verifications
    _case: KernelCase

    def verify(
        self, *, problem: str | None = None, families: Sequence[str] = (), seed: int | None = None, check: bool = True
    ) -> Verification:
        """Run the kernel and judge its outputs.

        Args:
            problem: A problem's name or shape; ``gpumode-0``, or the first of the kernel's settings, otherwise.
            families: Input families; otherwise the default ones without sizes of their own.
            seed: Seed of the inputs and the order of calls, to repeat a run.
            check: Fail the test if an output is wrong; False to get the verdicts only.

        Raises:
            CheckFailure: An output is wrong, or an argument cannot be used.
        """
        settings = self._case.settings
        verifier = self._verifications.verifier(settings.arch)
        try:
            own = self._run.settings_of(self._case.path)
            chosen = own.resolve_problems([problem])[0] if problem else self._case.problem
            contract_of(chosen).require(chosen)
        except ProblemError as error:
            raise CheckFailure(f"nvfp4_kernel: {error}") from error
        for family in families:
            if family not in FAMILIES:
                raise CheckFailure(f"nvfp4_kernel: no family is called {family!r}; known are {', '.join(FAMILIES)}")
        names = families or [family.name for family in default_families() if family.shapes is None]
        trace = self._run.trace(self._case)
        spec, base = KernelSpec.from_files(
            self._case.path,
            others=[Path(path) for path in trace.dependencies],
            **settings.of_job,
        )
        cases = [JobCase(problem=ProblemSpec.of(chosen), family=name) for name in names]
        done = verifier.verify(spec, cases, base=base, order_seed=seed)
        wrong = [
            f"{verdict.status} with inputs {verdict.case.family!r}: {finding}"
            for verdict in done.verdicts
            if verdict.status != "passed"
            for finding in verdict.findings[:3]
        ]
        if check and wrong:
            raise CheckFailure("\n".join(wrong), file=str(self._case.path))
        return done


@dataclass(frozen=True)
class KernelFactory:
    """Factory of kernels: ``nvfp4_kernel("kernels/x.py")``."""

    _run: Run
    _verifications: Verifications

    def __call__(self, kernel: str | Path, *, arch: str | None = None) -> RunnableKernel:
        """Return a kernel that follows GPU MODE's contract.

        Args:
            kernel: The kernel file, relative to the root.
            arch: Architecture; that of the settings otherwise.

        Raises:
            CheckFailure: There is no such file, or its settings name an entry, which cannot be run.
        """
        path = (self._run.options.root / kernel).resolve()
        if not path.is_file():
            raise CheckFailure(f"nvfp4_kernel: there is no kernel file {path}")
        case = self._run.cases(path, named=False)[0]
        if case.settings.entry:
            raise CheckFailure(f"nvfp4_kernel: {path.name} has an entry; only kernels under the contract can be run")
        if arch is not None:
            case = replace(case, settings=replace(case.settings, arch=arch))
        return RunnableKernel(self._run, self._verifications, case)

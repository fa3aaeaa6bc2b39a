"""``verify``: the kernel's outputs are right, bit for bit wherever every order of fp32 sums is exact.

The kernel runs on the device with the default input families. Each call has new inputs, drawn with a key that the
kernel does not know, and poisoned outputs; the kernel cannot predict the number and the order of the calls. This
process judges the outputs with the exact oracle. In the simulator it also judges who computed them: launched kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.contracts.base import Contract
from pytest_nvfp4.contracts.registry import is_own
from pytest_nvfp4.plugin.checks.base import Check, CheckItem, CollectedKernel, Needs, Preparation, RemoteBatch
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest, job_case
from pytest_nvfp4.plugin.checks.wrong_results import wrong_results
from pytest_nvfp4.plugin.failure import CheckFailure, failure_at, finding_lines
from pytest_nvfp4.plugin.fitted import FITTED
from pytest_nvfp4.plugin.remote import remote_error
from pytest_nvfp4.plugin.simulations import SIMULATIONS
from pytest_nvfp4.plugin.state import KernelCase, Run
from pytest_nvfp4.plugin.verifications import VERIFICATIONS
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.verdict import CaseVerdict
    from pytest_nvfp4.device.verify import Verification
    from pytest_nvfp4.finding import Finding

_OWN_SHAPES = "own-shapes"
"""Variant and label of the case of the input families that have sizes of their own (edges, decode probes)."""
_FITTED_FAMILY = "nan_pad"
"""Inputs of the fitted problem: exact for any k, every element code and mantissa, and NaN around the tensors."""
_LARGE = 1 << 28
"""Multiply-adds of a problem that the simulator takes a second or more for, each call."""
_LARGE_FAMILIES = frozenset({"gpumode", _FITTED_FAMILY})
"""Inputs of large problems in the simulator. What the other families show, one problem shows: the smallest has all."""
_LARGE_BATCH = "large"
"""Name of the job of large problems: the verdicts on the others do not wait for it."""
_DEVICE_PROPERTY = "nvfp4_device"
"""Property of test reports, and so of JUnit, that names the device."""
_WRITTEN_PROPERTY = "nvfp4_written_by"
"""Property of test reports, and so of JUnit, that names who wrote C."""
_MOST_OUTPUT_BYTES = 192 << 20
"""Bytes of outputs of one remote job, so that no response takes long."""
_CALLS = 1.5
"""Calls for each case whose outputs return, on average (`device.call_plan`)."""


class VerifyCheck(Check):
    """The check of a kernel's outputs on the device of the run."""

    name = "verify"
    help = "every output is right, inputs are unchanged, and nothing else is written"
    stage = 30
    uses_device = True

    def cases(self, kernel: CollectedKernel) -> Iterator[KernelCase]:
        """Yield one case for each problem, for the input families with sizes of their own, and for the fitted problem.

        There are none with ``--nvfp4-device=none``.
        """
        if kernel.device_options.device == "none":
            return
        for first, *_ in kernel.runnable:
            for problem in _verified(kernel.run, first):
                yield first.on(problem)
            contract = first.settings.kernel_contract
            chosen = kernel.run.chosen(first.path, first.settings)
            if not chosen and _any_own_shapes(contract, kernel.device_options.families):
                yield first.on(contract.tests[0], label=_OWN_SHAPES, variant=_OWN_SHAPES)
        yield from kernel.fitted_cases()

    def needs(self, item: CheckItem) -> Needs:
        """Return the trace and, unless a remote does the work, the verification, which items of one kernel share."""
        traces = (item.case.trace_case,)
        kernel = KernelUnderTest(item)
        if (remote := kernel.devices.remote) is not None and item.case.variant != FITTED:
            return Needs(traces) if remote.unusable is None else Needs()
        where = item.case.path, item.case.settings.name
        preparations = [Preparation((self.name, *where, _batch(item)), lambda: self._verify(kernel))]
        if item.case.variant == _OWN_SHAPES:
            preparations.append(Preparation(("far end", *where), lambda: _overflows(kernel)))
        return Needs(traces, preparations=tuple(preparations))

    def remote_batches(self, items: Sequence[CheckItem]) -> Iterator[RemoteBatch]:
        """Yield the jobs of each configuration, each job by itself."""
        from pytest_nvfp4.device.verify import verify_job

        sent: set[str] = set()
        for item in items:
            kernel = KernelUnderTest(item)
            if item.case.settings.name in sent or (remote := kernel.devices.remote) is None:
                continue
            if item.case.variant == FITTED:  # its problem is known only when it has been simulated
                continue
            sent.add(item.case.settings.name)
            if (spec := kernel.remote_spec(remote)) is not None:
                known = item.config.stash[VERIFICATIONS].known_to_pass
                for chunk in self._chunks(item, containers=remote.request.options.containers):
                    if known(spec, chunk):
                        continue
                    yield RemoteBatch([verify_job(spec, chunk, deadline_s=kernel.devices.options.timeout_s)])

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if an output is wrong, or if the kernel does not run to its end."""
        item = nvfp4_case.item
        _require_known_families(item.case.settings.kernel_contract, nvfp4_case.devices.options.families)
        spec, base, done = self._verify(nvfp4_case)
        cases = self._job_cases(item)
        for case, verification in zip(cases, done, strict=True):
            if not any(verdict.case == case for verdict in verification.verdicts):
                raise CheckFailure(f"{case.problem.name} was not judged", file=str(item.case.path))
        if not cases:
            raise CheckFailure("there is no case to verify", file=str(item.case.path))
        if done[0].device is not None:
            item.user_properties.append((_DEVICE_PROPERTY, str(done[0].device)))
        judged = [
            nvfp4_case.without_accepted(verdict)
            for case, verification in zip(cases, done, strict=True)
            for verdict in verification.verdicts
            if verdict.case == case
        ]
        wrong = [verdict for verdict in judged if verdict.status != "passed"]
        _write_timeline(nvfp4_case, spec, wrong[0].case if wrong else cases[0], base=base)
        if wrong:
            at = next(index for index, case in enumerate(cases) if case == wrong[0].case)
            if (reason := remote_error(wrong[0].findings)) is not None:
                remote = nvfp4_case.devices.remote
                device = nvfp4_case.devices.options.device if remote is None else remote.request.name
                raise CheckFailure(f"not run on {device}: {reason}", file=str(nvfp4_case.case.path))
            raise wrong_results(nvfp4_case, judged, done[at])
        _note_writers(nvfp4_case, judged)
        nvfp4_case.establish(_evidence(judged, simulated=done[0].device is not None and done[0].device.simulated))
        if item.case.variant == _OWN_SHAPES:
            _check_offsets(nvfp4_case)

    def _verify(self, kernel: KernelUnderTest) -> tuple[KernelSpec, Path, list[Verification]]:
        """Return the kernel, the folder of its files, and the verification of each case of the item.

        The cases of other items of the same kernel run in the same job, and their verifications are cached.
        """
        item, devices = kernel.item, kernel.devices
        devices.device(item.case.settings.arch)
        spec, base = kernel.device_spec()
        cases = self._job_cases(item)
        others: list[JobCase] = []
        if devices.remote is not None and item.case.variant != FITTED:
            devices.remote.wait_sent(item.parent)
            chunks = self._chunks(item, containers=devices.remote.request.options.containers)
            others = next((chunk for chunk in chunks if set(cases) <= set(chunk)), cases)
        elif not devices.shared:
            others = [case for other in self._with(item) for case in self._job_cases(other)]
        fitted = kernel.fitted()
        sms = None if fitted is None else fitted.sms
        verifications = item.config.stash[VERIFICATIONS]
        return spec, base, verifications.verify(spec, cases, others=others, batch=_batch(item), sms=sms, base=base)

    def _with(self, item: CheckItem) -> list[CheckItem]:
        """Return the items whose cases run in one job with those of an item.

        The fitted problem is not among them: the others need not wait until it is known.
        """
        batch = _batch(item)
        return [other for other in item.siblings(self.name) if _batch(other) == batch]

    def _job_cases(self, item: CheckItem) -> list[JobCase]:
        """Return the cases of an item as a job has them, one for each input family."""
        names = KernelUnderTest(item).devices.options.families
        families = _families(item.case.settings.kernel_contract, names)
        if item.case.variant == FITTED:
            return [job_case(KernelUnderTest(item).problem, name) for name in names or [_FITTED_FAMILY]]
        if item.case.variant == _OWN_SHAPES:
            return [job_case(shapes, name) for name, shapes in families.items() if shapes is not None]
        chosen = [name for name, shapes in families.items() if names or shapes is None]
        if not names and _batch(item) == _LARGE_BATCH:
            chosen = [name for name in chosen if name in _LARGE_FAMILIES] or chosen
        return [job_case(item.case.problem, name) for name in chosen]

    def _chunks(self, item: CheckItem, *, containers: int) -> list[list[JobCase]]:
        """Return the cases of each remote job of a kernel and configuration, the same for each of its items.

        One job for a kernel costs one start of Python, torch and the DSL. More jobs occupy more containers, and keep
        each response small.
        """
        units = [self._job_cases(other) for other in self._with(item)]
        sizes = [sum(_output_bytes(case) for case in unit) for unit in units]
        share = max(sum(sizes) / max(1, min(containers, len(units))), 1.0)
        chunks: list[list[JobCase]] = []
        held = 0.0
        for unit, size in zip(units, sizes, strict=True):
            new = [case for case in unit if not any(case in chunk for chunk in chunks)]
            if not chunks or held + size > min(share * 1.0001, _MOST_OUTPUT_BYTES):
                chunks.append([])
                held = 0.0
            chunks[-1] += new
            held += size
        return [chunk for chunk in chunks if chunk]


def _verified(run: Run, first: KernelCase) -> Sequence[Problem]:
    """Return the problems of one configuration: of the command line, of its settings, or of its contract."""
    settings = first.settings
    return run.chosen(first.path, settings) or settings.verify or settings.kernel_contract.checked


def _batch(item: CheckItem) -> str:
    """Return the name of the job that an item's cases run in.

    On a GPU, and on a remote one, a start takes longer than the calls, so that one job has all but the fitted problem.
    """
    kernel = KernelUnderTest(item)
    case, multiply_adds = item.case, item.case.settings.kernel_contract.multiply_adds
    if case.variant == FITTED:
        return FITTED
    if case.variant == _OWN_SHAPES or multiply_adds(case.problem) < _LARGE:
        return ""
    if not kernel.devices.simulates(case.settings.arch):
        return ""
    return "" if case.problem == min(_verified(kernel.run, case), key=multiply_adds) else _LARGE_BATCH


def _check_offsets(kernel: KernelUnderTest) -> None:
    """Fail if an offset in a C of more than 2^32 bytes overflows, in the simulator."""
    findings = _overflows(kernel)
    if findings:
        raise failure_at(finding_lines(findings, kernel.run, most=1), findings, kernel=kernel.case.path)
    if findings is None:
        kernel.note("offsets in a C of more than 2^32 bytes: not checked, the kernel did not run to its end")


def _overflows(kernel: KernelUnderTest) -> Sequence[Finding] | None:
    """Return what `Simulations.far_end` does; nothing on a GPU, where offsets are not checked.

    Kernels for Hopper are left out: those that specialise their code for a problem compile it anew for this one.
    """
    arch = kernel.case.settings.arch
    if kernel.devices.device(arch).name != "sim" or not arch.startswith("sm_10"):
        return ()
    spec, base = kernel.device_spec()
    return kernel.item.config.stash[SIMULATIONS].far_end(spec, base=base)


def _evidence(verdicts: Sequence[CaseVerdict], *, simulated: bool) -> str:
    """Return what verdicts of passed cases establish, in words. A case without groups passed in an earlier run."""
    where = "simulated" if simulated else "on the device"
    problems, families = ({verdict.case.problem.name for verdict in verdicts}, {v.case.family for v in verdicts})
    tried = f"{plural(len(problems), 'problem')}, {plural(len(families), 'input family', 'input families')}"
    groups = [group for verdict in verdicts for group in verdict.groups]
    exact, bounded = sum(group.exact_outputs for group in groups), sum(group.bounded_outputs for group in groups)
    how = "right"
    if groups and all(verdict.groups for verdict in verdicts):
        how = f"{exact:,} outputs bit-exact" + (f", {bounded:,} within the derived bound" if bounded else "")
    elif not groups:
        how = "right, known from an earlier run of the same code"
    return f"{how} on {tried} ({where})"


def _note_writers(kernel: KernelUnderTest, verdicts: Sequence[CaseVerdict]) -> None:
    """Note who wrote C, where the simulator has seen it in this run."""
    for written_by in dict.fromkeys(verdict.written_by for verdict in verdicts if verdict.written_by):
        kernel.item.user_properties.append((_WRITTEN_PROPERTY, written_by))
        if kernel.item.config.getoption("verbose") > 0:
            kernel.note(written_by)


def _families(contract: Contract, names: Sequence[str]) -> Mapping[str, Problem | None]:
    """Return input families, each with its own problem if it has one: those of the contract, or those that are named.

    A name that is none of the contract's is for kernels of other contracts. If none is, the contract's own ones run.
    """
    if not names or is_own(contract.name):
        listed = contract.families()
        return {name: shapes for name, shapes in listed.items() if name in names} or listed
    from pytest_nvfp4.numerics.families import FAMILIES

    known = {name: FAMILIES[name].shapes if contract.own_shapes else None for name in names if name in FAMILIES}
    return known or contract.families()


def _require_known_families(contract: Contract, names: Sequence[str]) -> None:
    """Raise CheckFailure if a family is neither one of the user's own contract nor one of NVFP4 operands."""
    if not names or not is_own(contract.name):
        return
    from pytest_nvfp4.numerics.families import FAMILIES

    listed = contract.families()
    for name in names:
        if name not in listed and name not in FAMILIES:
            raise CheckFailure(f"--nvfp4-family {name!r}: the kernel's contract has {', '.join(listed)}")


def _any_own_shapes(contract: Contract, names: Sequence[str]) -> bool:
    """Return whether an input family has sizes of its own; those of nvfp4_group_gemm have some."""
    if not contract.own_shapes:
        return False
    return not names or any(shapes is not None for shapes in _families(contract, names).values())


def _output_bytes(case: JobCase) -> float:
    """Return the bytes of the fp16 outputs of all calls of a case; those of a contract of the user's own are few."""
    return _CALLS * sum(2 * m * n * l for m, n, _, l in case.problem.sizes)  # noqa: E741 - the batch's usual name


def _write_timeline(kernel: KernelUnderTest, spec: KernelSpec, case: JobCase, *, base: Path) -> None:
    """Write the timeline of one call, with ``--nvfp4-trace`` and the simulator as device."""
    if kernel.devices.options.trace is None or kernel.devices.device(spec.arch).name != "sim":
        return
    simulations = kernel.item.config.stash[SIMULATIONS]
    kernel.write_timeline(simulations.simulate(spec, case, others=(), base=base))

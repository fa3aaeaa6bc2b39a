"""Runs an edited kernel in the simulator with the jobs of the checks, and returns what they report.

A kernel is compiled and simulated once, with the analysis of races and exact outputs, as ``races`` does. After a wrong
result it is run on inputs that say which operand read the wrong data, and if nothing is found, on other addresses,
shapes and contents, as ``verify`` does.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_nvfp4.cores import cores
from pytest_nvfp4.device.cause_search import PROVENANCE
from pytest_nvfp4.device.far_end import overflows
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.device.verify import Verifier
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.tracer import Tracer
from tests.contracts.own import own_cases, own_kernel
from tests.sim.mutants.source.corpus import ROOT, Subject
from tests.sim.mutants.source.edit import Edit

FAMILY = "nan_pad"
DEADLINE_S = 300.0
WIDE = "32 bits"
"""The topic of mistakes that need a tensor of more than 2^31 bytes, which ``verify[own-shapes]`` runs."""
_RACES = frozenset({"race", "proxy", "tensormap"})
_COVERAGE = frozenset({"never-written", "written-by-two"})
_PREFIX = re.compile(r"^simulated, [\w -]+: ")


@dataclass(frozen=True)
class Said:
    """What is reported of one edited kernel.

    Attributes:
        check: The check that reports it; empty if nothing is found.
        first: First line of the message.
        line: The kernel's line that it names; empty if it names none.
        message: The whole message.
    """

    check: str = ""
    first: str = ""
    line: str = ""
    message: str = ""


def _said(findings: Iterable[Finding], text: str) -> Said:
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return Said()
    # As in `races`: a deadlock or a wrong value beside a race is its consequence.
    one = min(errors, key=lambda finding: finding.kind not in _RACES)
    kinds = (("races", _RACES), ("coverage", _COVERAGE))
    check = next((check for check, own in kinds if one.kind in own), "verify")
    message = _PREFIX.sub("", one.message)
    line = text.splitlines()[one.line - 1].strip() if one.line else ""
    return Said(check, message.splitlines()[0], line, f"{one.kind}: {message}")


def run(subject: Subject, edit: Edit | None, folder: Path) -> Said:
    """Return what the checks report of a kernel after an edit. ``folder`` is for files."""
    text = subject.text(edit)
    path = folder / f"{subject.name}.py"
    path.write_text(text)
    device = SimDevice(arch=subject.arch)
    if not subject.groups:
        place, call = subject.contract
        spec, base = own_kernel(path, call, arch=subject.arch)
        for case in own_cases(f"{ROOT}/{place}"):
            (done,) = simulate(
                device, spec, [case], folder=folder, base=base, deadline_s=DEADLINE_S, outputs=True, races=True
            )
            if (said := _said(done.findings, text)).check:
                return said
        return Said()
    spec, base = KernelSpec.from_files(path, arch=subject.arch)
    case = JobCase(problem=ProblemSpec.of(subject.problem), family=FAMILY)
    simulated = partial(
        simulate, device, spec, [case], folder=folder, base=base, deadline_s=DEADLINE_S, sms=subject.sms
    )
    (done,) = simulated(outputs=True, races=True)
    said = _said(done.findings, text)
    if said.check and done.call is None:  # nothing is launched; `compile` reports what it can, before any other check
        tracer = Tracer(root=folder, cache=TraceCache(folder / "traces"))
        trace = tracer.trace(TraceRequest(kernel=path, problem=subject.problem, arch=subject.arch))
        if not trace.ok:
            return replace(_said(trace.errors, text), check="compile")
    if said.message.startswith("mismatch: "):
        (followed,) = simulated(outputs=False, provenance=True)
        causes = _said((finding for finding in followed.findings if finding.kind == PROVENANCE), text)
        return causes if causes.check else said
    if said.check:
        return said
    verifier = Verifier(device, folder=folder, deadline_s=DEADLINE_S)
    verified = verifier.verify(spec, [case], base=base, order_seed=0, sms=subject.sms)
    findings = [finding for verdict in verified.verdicts for finding in verdict.findings]
    if not findings and (edit is None or edit.topic == WIDE):
        findings = overflows(device, spec, folder=folder, base=base) or []
    return _said(findings, text)


def reported(job: tuple[Subject, Edit | None]) -> Said:
    """Return what is reported of a kernel after an edit."""
    with tempfile.TemporaryDirectory() as folder:
        return run(*job, Path(folder))


def run_all(jobs: Sequence[tuple[Subject, Edit | None]]) -> Iterator[Said]:
    """Yield what is reported of each, in order; the machine's cores run them side by side."""
    with ThreadPoolExecutor(max(1, cores())) as pool:
        yield from pool.map(reported, jobs)

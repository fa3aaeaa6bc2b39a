"""``tmem``: the kernel allocates the TMEM columns that it uses, and an SM has them.

It fails when a kernel allocates fewer columns than its accumulators and scale factors cover, or more than an SM has,
and warns when a smaller allocation would suffice. The columns in use are those of the layouts of named tensors; the
allocation is read from the PTX. It also fails when scale factors and accumulators overlap while they are used, or lie
outside the allocation, in the simulation of the smallest problem (`sim.tcgen05.column_use`), which other checks share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.checks.base import Check, CheckItem, CollectedKernel, Needs
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.failure import CheckFailure, finding_lines
from pytest_nvfp4.plugin.state import RUN, KernelCase

if TYPE_CHECKING:
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.tmem.judge import Judgement

_KINDS = frozenset({"tmem", "tmem-overlap"})
"""Kinds of the simulator's findings that are this check's subject."""
_FINDINGS_SHOWN = 4


class TmemCheck(Check):
    """The check of a kernel's TMEM allocation."""

    name = "tmem"
    help = "the kernel allocates the TMEM columns that it uses, and an SM has them"
    stage = 20

    def cases(self, kernel: CollectedKernel) -> Sequence[KernelCase]:
        """Return the cases of a file that mentions tensor memory, which only some architectures have."""
        try:
            text = kernel.path.read_bytes()
        except OSError:
            return ()
        return kernel.cases if b"tcgen05" in text or b"tmem" in text else ()

    def needs(self, item: CheckItem) -> Needs:
        """Return the trace, and the simulation of the smallest problem that is simulated anyway."""
        simulated = _smallest(item)
        return Needs((item.case.trace_case,), () if simulated is None else (simulated,))

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if a kernel uses columns that it did not allocate, allocates more than an SM has, or overlaps them."""
        from pytest_nvfp4.tmem.judge import judgements

        trace = nvfp4_case.trace()
        found = judgements(trace)
        for judgement in found:
            for note in judgement.notes:
                nvfp4_case.warn(f"TMEM of {judgement.kernel}: {note}")
        lines = [f"TMEM of {judgement.kernel}: {error}" for judgement in found for error in judgement.errors]
        used = _findings(nvfp4_case)
        if lines or used:
            place = next((value for value in trace.values if value.name.endswith(("tCtAcc", "tmem_ptr"))), None)
            file, line = (place.file, place.line) if place else (trace.kernel, None)
            if not lines:
                file, line = next(((each.file, each.line) for each in used if each.file), (file, line))
            lines += finding_lines(used, nvfp4_case.run, most=_FINDINGS_SHOWN)
            raise CheckFailure("\n".join(lines), file=file, line=line, findings=used)
        for judgement in found:
            nvfp4_case.establish(_columns(judgement))


def _columns(judgement: Judgement) -> str:
    """Return the columns that a kernel uses and allocates, in words."""
    from pytest_nvfp4.tmem.columns import COLUMNS
    from pytest_nvfp4.tmem.judge import parts

    used = judgement.usage
    held = "a number of columns computed at run time" if judgement.total is None else f"{judgement.total} columns"
    what = f"{used.total} of {COLUMNS} TMEM columns" if used.tensors else "TMEM columns without known names"
    roles = parts(used)
    return f"{judgement.kernel}: {what}{f' ({roles})' if roles else ''}; it allocates {held}"


def _findings(kernel: KernelUnderTest) -> list[Finding]:
    """Return what the simulation finds about TMEM; other findings are those of other checks."""
    case = _smallest(kernel.item)
    if case is None or kernel.devices.simulator.unsupported(case.settings.arch) is not None:
        return []
    done = kernel.without_accepted(kernel.simulated(case))
    found = [finding for finding in done.errors if finding.kind in _KINDS]
    if done.status not in ("passed", "failed") and not found:
        reason = next((str(finding).partition("\n")[0] for finding in done.errors), done.status)
        kernel.warn(f"which TMEM columns are in use was not checked: the simulation did not run to its end: {reason}")
    return found


def _smallest(item: CheckItem) -> KernelCase | None:
    """Return the case with the fewest multiplications of those that ``coverage`` simulates; None without simulator."""
    run, case = item.config.stash[RUN], item.case
    if not item.config.stash[DEVICES].options.simulates or not case.settings.is_run or case.error is not None:
        return None
    own = [each.problem for each in run.cases(case.path, named=False) if each.settings.name == case.settings.name]
    problems = run.chosen(case.path, case.settings) or case.settings.simulate or own or [case.problem]
    return case.on(min(problems, key=lambda problem: problem.work))

"""``tmem``: the kernel allocates the TMEM columns that it uses, and an SM has them.

It fails when a kernel allocates fewer columns than its accumulators and scale factors cover, or more than an SM has,
and warns when a smaller allocation would suffice. The columns in use are those of the layouts of named tensors; the
allocation is read from the PTX.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.plugin.checks.base import Check, CollectedKernel
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.state import KernelCase


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

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if a kernel uses columns that it did not allocate, or allocates more than an SM has."""
        from pytest_nvfp4.tmem.judge import judgements

        trace = nvfp4_case.trace()
        found = judgements(trace)
        for judgement in found:
            for note in judgement.notes:
                nvfp4_case.warn(f"TMEM of {judgement.kernel}: {note}")
        lines = [f"TMEM of {judgement.kernel}: {error}" for judgement in found for error in judgement.errors]
        if lines:
            place = next((value for value in trace.values if value.name.endswith(("tCtAcc", "tmem_ptr"))), None)
            raise CheckFailure(
                "\n".join(lines), file=place.file if place else trace.kernel, line=place.line if place else None
            )

"""``tmem``: the kernel allocates the TMEM columns that it uses, and an SM has them.

It fails when a kernel allocates fewer columns than its accumulators and scale factors cover, or more than an SM has,
and warns when a smaller allocation would do. What a kernel uses is read from the layouts of its named tensors, what it
allocates from its PTX.
"""

from __future__ import annotations

from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.kernel import KernelUnderTest, KernelWarning


def tmem(nvfp4_case: KernelUnderTest) -> None:
    """No kernel uses TMEM that it did not allocate, or allocates what there is not."""
    from pytest_nvfp4.tmem.judge import judgements

    trace = nvfp4_case.compiled_or_skip()
    found = judgements(trace)
    for one in found:
        for note in one.notes:
            nvfp4_case.note(KernelWarning(f"TMEM of {one.kernel}: {note}"))
    lines = [f"TMEM of {one.kernel}: {error}" for one in found for error in one.errors]
    if lines:
        place = next((value for value in trace.values if value.name.endswith(("tCtAcc", "tmem_ptr"))), None)
        raise CheckFailure(
            "\n".join(lines), file=place.file if place else trace.kernel, line=place.line if place else None
        )

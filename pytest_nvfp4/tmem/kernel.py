"""The TMEM of a compiled kernel: what its machine code allocates against what its layouts cover."""

from __future__ import annotations

from pytest_nvfp4.tmem.judge import Judgement, judge
from pytest_nvfp4.tmem.usage import of_kernel, usage
from pytest_nvfp4.toolchain.trace import Trace


def judgements(trace: Trace) -> list[Judgement]:
    """One for each kernel of the trace that allocates TMEM; for all together if none does and a tensor lies there."""
    values = [(value.name, value.type) for value in trace.values]
    allocating = [code for code in trace.code if code.tmem_columns and not code.library]
    if not allocating:
        found = usage(values)
        # Only layouts, as of a kernel that was traced and not compiled to the end, allocate nothing.
        return [judge("the kernel", (), found)] if found.tensors and trace.code else []
    alone = len(allocating) == 1
    return [
        judge(
            code.source_name or code.symbol,
            code.tmem_columns,
            usage(of_kernel(values, code.source_name, alone=alone)),
        )
        for code in allocating
    ]

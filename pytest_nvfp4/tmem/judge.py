"""Judge a kernel's TMEM allocations against the columns that its layouts cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_nvfp4.tmem.columns import COLUMNS, LEAST_ALLOCATION, allocation
from pytest_nvfp4.tmem.usage import Usage, of_kernel, usage
from pytest_nvfp4.toolchain.trace import Trace

_ENCODING = "#ttng.tensor_memory"
"""What Triton writes of a tensor in tensor memory."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Comparison of a kernel's allocations with its layouts.

    Attributes:
        kernel: Name of the function.
        allocated: Columns of each ``tcgen05.alloc`` in PTX order; None where they are computed at run time.
        usage: Columns that its layouts cover.
        errors: Defects that make the kernel fail or corrupt TMEM.
        notes: Possible savings, and limits of the comparison.
    """

    kernel: str
    allocated: tuple[int | None, ...]
    usage: Usage
    errors: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def total(self) -> int | None:
        """Columns of all allocations; None if one is computed at run time."""
        counts = [count for count in self.allocated if count is not None]
        return sum(counts) if len(counts) == len(self.allocated) else None


def judgements(trace: Trace) -> list[Judgement]:
    """Judge each kernel of a trace that allocates TMEM.

    If none allocates but a tensor lies in TMEM, return one judgement for all kernels together.
    """
    values = [(value.name, value.type) for value in trace.values]
    allocating = [code for code in trace.code if code.tmem_columns and not code.library]
    nameless = not values or any(_ENCODING in value.type for value in trace.values)
    if not allocating:
        used = usage(values)
        # Without machine code (a compilation that stopped early) there are layouts but no allocations to compare.
        return [judge("the kernel", (), used)] if used.tensors and trace.code else []
    alone = len(allocating) == 1
    return [
        judge(
            code.source_name or code.symbol,
            code.tmem_columns,
            usage(of_kernel(values, code.source_name, alone=alone)),
            nameless=nameless,
        )
        for code in allocating
    ]


def judge(kernel: str, allocated: Sequence[int | None], used: Usage, *, nameless: bool = False) -> Judgement:
    """Compare a kernel's allocations with the columns of its named tensors.

    Args:
        kernel: Name of the function.
        allocated: Columns of each ``tcgen05.alloc``.
        used: Columns that its layouts cover.
        nameless: Whether the kernel's language has no named layouts, so that its author can give none: Triton's
            compiler places tensors and allocates, and no value of CUDA C++ is seen. The simulation finds what such a
            kernel uses.
    """
    errors = [*_malformed(allocated), *_too_much(allocated)]
    notes: list[str] = []
    total = None if None in allocated else sum(count for count in allocated if count is not None)
    if total is None:
        notes.append(
            "a tcgen05.alloc computes its columns at run time, so they are not checked; make the number a compile-time "
            "constant"
        )
    elif used.total > total:
        errors.append(_too_little(total, used))
    elif total and used.tensors and not errors:
        notes += _could_be_less(total, used)
    if total and not used.tensors and not nameless:
        notes.append(
            f"it allocates {total} columns, and no tensor in TMEM has a known name (tCtAcc, tCtSFA, tCtSFB), so the "
            "columns in use are unknown"
        )
    notes += [
        f"{text}; either the layout does not belong to this tile, or the tile of shared memory and the MMA is wrong"
        for text in used.disagreements()
    ]
    return Judgement(kernel, tuple(allocated), used, tuple(errors), tuple(notes))


def parts(used: Usage) -> str:
    """Format the columns by role, such as ``acc 128 + SFA 16 + SFB 16``."""
    return " + ".join(f"{role} {count}" for role in ("acc", "SFA", "SFB") if (count := used.of(role)))


def _malformed(allocated: Sequence[int | None]) -> list[str]:
    return [
        f"tcgen05.alloc of {count} columns: the number must be a power of two from {LEAST_ALLOCATION} to "
        f"{COLUMNS}; allocate {allocation(count)}"
        for count in allocated
        if count is not None and 0 <= count <= COLUMNS and allocation(count) != count
    ]


def _too_much(allocated: Sequence[int | None]) -> list[str]:
    counts = [count for count in allocated if count is not None]
    if sum(counts) <= COLUMNS:
        return []
    held = " + ".join(map(str, counts))
    return [
        f"it allocates {held}{f' = {sum(counts)}' if len(counts) > 1 else ''} columns, and an SM has {COLUMNS}: the "
        "allocation never returns; use fewer accumulator stages, let them overlap (nvfp4 tmem-pack), or a smaller tile"
    ]


def _too_little(total: int, used: Usage) -> str:
    needed = allocation(used.total)
    advice = (
        f"allocate {needed}"
        if needed is not None
        else f"an SM has {COLUMNS}: use fewer accumulator stages, let them overlap (nvfp4 tmem-pack), or a smaller tile"
    )
    names = ", ".join(tensor.names[0] for tensor in used.tensors)
    what = f"{parts(used)} = {used.total} columns ({names})" if used.tensors else f"{used.total} columns"
    held = f"allocates {total}" if total else "allocates none"
    return f"it uses {what}, and {held}: accesses beyond the allocation corrupt another CTA's TMEM or fault; {advice}"


def _could_be_less(total: int, used: Usage) -> list[str]:
    needed = allocation(used.total)
    if needed is None or needed >= total:
        return []
    if not used.complete:
        return [f"it allocates {total} columns, of which {used.total} belong to tensors with known names"]
    return [
        f"it allocates {total} columns, and its named tensors cover {parts(used)} = {used.total}: unless it uses "
        f"others at computed columns (further stages of the accumulator), {needed} are enough, and {COLUMNS // needed} "
        f"CTAs instead of {COLUMNS // total} could hold TMEM on an SM at once"
    ]

"""What is wrong with a kernel's TMEM allocation, and what could be less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_nvfp4.tmem.columns import COLUMNS, LEAST_ALLOCATION, allocation
from pytest_nvfp4.tmem.usage import Usage


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a kernel's allocations and its layouts say together.

    Attributes:
        kernel: The function.
        allocated: Columns of each ``tcgen05.alloc`` in the order of the PTX; None where they are computed at run time.
        usage: What its layouts cover.
        errors: What cannot work.
        notes: What is worth knowing.
    """

    kernel: str
    allocated: tuple[int | None, ...]
    usage: Usage
    errors: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def total(self) -> int | None:
        """Columns of all allocations; None where one is computed at run time."""
        counts = [count for count in self.allocated if count is not None]
        return sum(counts) if len(counts) == len(self.allocated) else None


def judge(kernel: str, allocated: Sequence[int | None], usage: Usage) -> Judgement:
    """Compare what a kernel allocates with what its named tensors cover."""
    errors = [*_malformed(allocated), *_too_much(allocated)]
    notes: list[str] = []
    total = None if None in allocated else sum(count for count in allocated if count is not None)
    if total is None:
        notes.append(
            "a tcgen05.alloc computes its columns at run time, so that nothing is said about them; make the number a "
            "compile-time constant"
        )
    elif usage.total > total:
        errors.append(_too_little(total, usage))
    elif total and usage.tensors and not errors:
        notes += _could_be_less(total, usage)
    if total and not usage.tensors:
        notes.append(
            f"it allocates {total} columns, and no tensor in TMEM is known by its name (tCtAcc, tCtSFA, tCtSFB), so "
            "that it is not known what it uses"
        )
    notes += [
        f"{text}; either the layout is not the one of this tile, or the tile is not what shared memory and the MMA say"
        for text in usage.disagreements()
    ]
    return Judgement(kernel, tuple(allocated), usage, tuple(errors), tuple(notes))


def parts(usage: Usage) -> str:
    """``acc 128 + SFA 16 + SFB 16``."""
    return " + ".join(f"{role} {count}" for role in ("acc", "SFA", "SFB") if (count := usage.of(role)))


def _malformed(allocated: Sequence[int | None]) -> list[str]:
    return [
        f"tcgen05.alloc of {count} columns: it takes a power of two from {LEAST_ALLOCATION} to {COLUMNS}; allocate "
        f"{allocation(count)}"
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
        "allocation waits forever; use fewer accumulator stages, let them overlap (nvfp4 tmem-pack), or a smaller tile"
    ]


def _too_little(total: int, usage: Usage) -> str:
    needed = allocation(usage.total)
    advice = (
        f"allocate {needed}"
        if needed is not None
        else f"an SM has {COLUMNS}: use fewer accumulator stages, let them overlap (nvfp4 tmem-pack), or a smaller tile"
    )
    names = ", ".join(tensor.names[0] for tensor in usage.tensors)
    what = f"{parts(usage)} = {usage.total} columns ({names})" if usage.tensors else f"{usage.total} columns"
    had = f"it allocates {total}" if total else "it allocates none"
    return f"it uses {what}, and {had}: what lies beyond is another CTA's, or nobody's; {advice}"


def _could_be_less(total: int, usage: Usage) -> list[str]:
    needed = allocation(usage.total)
    if needed is None or needed >= total:
        return []
    if not usage.complete:
        return [f"it allocates {total} columns, and of its tensors {usage.total} are known"]
    return [
        f"it allocates {total} columns and uses {parts(usage)} = {usage.total}: {needed} would do, and "
        f"{COLUMNS // needed} CTAs instead of {COLUMNS // total} could hold TMEM on an SM at once"
    ]

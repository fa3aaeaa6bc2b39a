"""Claims on scale factors in shared memory and TMEM, of a traced kernel or of the expected layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from pytest_nvfp4.layout.canonical import canonical
from pytest_nvfp4.layout.grammar import parse_plain_layout
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.signals import injective, tractable
from pytest_nvfp4.layout.tree import leaves
from pytest_nvfp4.proof.scale_copies import check_copy
from pytest_nvfp4.proof.scale_operand import ScaleOperand, explicit_operand
from pytest_nvfp4.proof.scale_places import check_smem, check_tmem
from pytest_nvfp4.proof.statement import CaseResult, Claim, Method, Mistake, claim_by_cases, first_failure

TMEM_FORMULA = "(r, j) of MMA i: lane r % 32 + 32 q for q = 0 .. 3, column base_i + r // 32, byte id_i + j % (64 / V)"
COPY_FORMULA = "line l, byte c of a 512-byte block -> lanes l + 32 q, byte c of four columns"
ASSUMPTIONS = (
    "PTX ISA on tcgen05.cp .32x128b.warpx4 and on the scale factors of tcgen05.mma; not run on a B200",
    "an MMA receives the address of its first row's first factor, as tCtSFA[None, None, k_block].iterator is",
    "the descriptor's lines are 16 bytes apart, as in its view; views start at their tensor's base",
)


def claims_for(
    operands: Sequence[ScaleOperand],
    *,
    topic: str = "scale-factors",
    preconditions: tuple[str, ...] = (),
    subject: str | None = None,
) -> tuple[Claim, ...]:
    """Return the claims on the operands of a kernel, or on explicit ones that ``subject`` describes."""
    what = subject or " and ".join(dict.fromkeys(operand.name for operand in operands))
    claims = [
        claim_by_cases(
            f"{topic}.smem",
            f"Shared memory holds the factors of {what} as blocks of 128 rows by 4 factors, the order of global "
            "memory, stage after stage.",
            partial(_smem, operands),
            "places",
            formulas=("byte = (stage tiles + block) 512 + (r % 32) 16 + (r % 128) // 32 * 4 + j % 4",),
            given=preconditions,
            controls=(Mistake("the strides of rows 1 and 32 exchanged", {"exchanged": True}),),
        ),
        claim_by_cases(
            f"{topic}.tmem",
            f"The TMEM layout of {what} has every (row, k-block) in the lane, column and byte that the MMA reads, in "
            "all four quadrants.",
            partial(_each, operands, check_tmem),
            "places",
            formulas=(TMEM_FORMULA,),
            given=(*preconditions, *ASSUMPTIONS[:2]),
            controls=(Mistake("the MMA receives the address of the next column", {"shift": 4}),),
        ),
        claim_by_cases(
            f"{topic}.broadcast",
            f"In shared memory and TMEM of {what}, exactly the elements of one run share a factor: the modes of stride "
            "0 are those, and the others are tractable, so that no two factors share a place.",
            partial(_broadcast, operands),
            "layouts",
            formulas=(
                "product of the sizes of stride 0 = V",
                "s_i d_i | d_{i+1} for the other modes, sorted by stride",
            ),
            given=preconditions,
            controls=(Mistake("half as many elements share a factor", {"fewer": True}),),
            method=Method.CANONICAL,
        ),
    ]
    copied = [operand for operand in operands if operand.source is not None and operand.target is not None]
    if copied:
        what = subject or " and ".join(operand.name for operand in copied)
        claims.append(
            claim_by_cases(
                f"{topic}.copy",
                f"After the copies of a stage, the MMA finds for every (row, k-block) of {what} the byte that shared "
                "memory has for it.",
                partial(_each, copied, check_copy),
                "factors",
                formulas=(COPY_FORMULA, "TMEM(place of (r, j)) = smem(r, j)"),
                given=(*preconditions, *ASSUMPTIONS),
                controls=(
                    Mistake("lines 128 bytes apart in shared memory", {"line_units": 8}),
                    Mistake("the copy starts 16 bytes late", {"source_units": 1}),
                ),
            )
        )
    return tuple(claims)


def _each(operands: Sequence[ScaleOperand], check: Callable[..., CaseResult], **changes: int) -> CaseResult:
    return first_failure(check(operand, **changes) for operand in operands)


def _smem(operands: Sequence[ScaleOperand], *, exchanged: bool = False) -> CaseResult:
    return _each([_exchange_strides(operands[0])] if exchanged else operands, check_smem)


def _exchange_strides(operand: ScaleOperand) -> ScaleOperand:
    return replace(operand, smem=parse_plain_layout(str(operand.smem).replace("((16,4)", "((4,16)", 1)))


def without_broadcast(layout: Layout) -> Layout:
    """Return the layout without its modes of stride 0."""
    pairs = [pair for pair in zip(leaves(layout.shape), leaves(layout.stride), strict=True) if pair[1] != 0]
    return Layout(tuple(size for size, _ in pairs), tuple(stride for _, stride in pairs))


def check_broadcast(layout: Layout, vector: int) -> str | None:
    """Return how a layout shares its factors other than among exactly ``vector`` elements, or None."""
    pairs = zip(leaves(layout.shape), leaves(layout.stride), strict=True)
    shared = prod(size for size, stride in pairs if stride == 0 and isinstance(size, int))
    if shared != vector:
        return f"{canonical(layout)}: {shared} indices share a factor, not {vector}"
    rest = without_broadcast(layout)
    if not tractable(rest).value:
        return f"{canonical(layout)}: its modes without stride 0 do not divide each other"
    if not injective(rest).value:
        return f"{canonical(layout)}: two factors share a place"
    return None


def _broadcast(operands: Sequence[ScaleOperand], *, fewer: bool = False) -> CaseResult:
    def results() -> Iterator[CaseResult]:
        for operand in operands:
            for layout in (operand.smem, operand.tmem):
                wrong = check_broadcast(layout, operand.vector // 2 if fewer else operand.vector)
                yield CaseResult(wrong and f"{operand.name}: {wrong}", 1)

    return first_failure(results())


def claims() -> tuple[Claim, ...]:
    """Return the claims on the expected layouts, for tiles of 64 to 256 rows."""
    operands = [explicit_operand(rows=rows, vector=vector) for vector in (16, 32) for rows in (64, 128, 192, 256)]
    return claims_for(operands, subject="64, 128, 192 and 256 rows (16 and 32 elements to a factor, 256 of k)")

"""The claims on scale factors in shared memory and TMEM, of a traced kernel or of the layouts as they are to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from pytest_nvfp4.layout.canonical import canonical
from pytest_nvfp4.layout.grammar import parse_plain_layout
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.signals import injective, tractable
from pytest_nvfp4.layout.tree import leaves
from pytest_nvfp4.proof.scale_copies import look_at_copy
from pytest_nvfp4.proof.scale_operand import Operand, explicit_operand
from pytest_nvfp4.proof.scale_places import look_at_smem, look_at_tmem
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Look, Method

TMEM_FORMULA = "(r, j) of MMA i: lane r % 32 + 32 q for q = 0 .. 3, column base_i + r // 32, byte id_i + j % (64 / V)"
COPY_FORMULA = "line l, byte c of a 512-byte block -> lanes l + 32 q, byte c of four columns"
RESTS_ON = (
    "PTX ISA on tcgen05.cp .32x128b.warpx4 and on the scale factors of tcgen05.mma; not run on a B200",
    "an MMA is given the address of its first row's first factor, as tCtSFA[None, None, k_block].iterator is",
    "the descriptor's lines are 16 bytes apart, as its view says; views start at their tensor's base",
)


def claims_for(
    operands: Sequence[Operand],
    *,
    topic: str = "scale-factors",
    preconditions: tuple[str, ...] = (),
    whose: str | None = None,
) -> tuple[Claim, ...]:
    """The claims on the operands of a kernel, or on explicit ones; ``whose`` names them all."""
    what = whose or " and ".join(dict.fromkeys(operand.name for operand in operands))
    found = [
        _smem(operands, what, topic=topic, preconditions=preconditions),
        _tmem(operands, what, topic=topic, preconditions=preconditions),
        _broadcast(operands, what, topic=topic, preconditions=preconditions),
    ]
    copied = [operand for operand in operands if operand.source is not None and operand.target is not None]
    if copied:
        what = whose or " and ".join(operand.name for operand in copied)
        found.append(_copy(copied, what, topic=topic, preconditions=preconditions))
    return tuple(found)


def _smem(operands: Sequence[Operand], what: str, *, topic: str, preconditions: tuple[str, ...]) -> Claim:
    return Claim(
        name=f"{topic}.smem",
        words=f"Shared memory holds the factors of {what} as blocks of 128 rows by 4 factors, the order "
        "of global memory, stage after stage.",
        formulas=("byte = (stage tiles + block) 512 + (r % 32) 16 + (r % 128) // 32 * 4 + j % 4",),
        method=Method.EXHAUSTIVE,
        check=Cases(lambda: _each(operands, look_at_smem), "places"),
        preconditions=preconditions,
        controls=(
            Control(
                "the strides of rows 1 and 32 exchanged",
                Cases(lambda: look_at_smem(_exchanged(operands[0])), "places"),
            ),
        ),
    )


def _tmem(operands: Sequence[Operand], what: str, *, topic: str, preconditions: tuple[str, ...]) -> Claim:
    return Claim(
        name=f"{topic}.tmem",
        words=f"The TMEM layout of {what} has every (row, k-block) in the lane, column and byte that the "
        "MMA reads, in all four quadrants.",
        formulas=(TMEM_FORMULA,),
        method=Method.EXHAUSTIVE,
        check=Cases(lambda: _each(operands, look_at_tmem), "places"),
        preconditions=(*preconditions, *RESTS_ON[:2]),
        controls=(
            Control(
                "the MMA is given the address of the next column",
                Cases(lambda: look_at_tmem(operands[0], shift=4), "places"),
            ),
        ),
    )


def _copy(copied: Sequence[Operand], what: str, *, topic: str, preconditions: tuple[str, ...]) -> Claim:
    return Claim(
        name=f"{topic}.copy",
        words=f"After the copies of a stage, the MMA finds for every (row, k-block) of {what} the byte "
        "that shared memory has for it.",
        formulas=(COPY_FORMULA, "TMEM(place of (r, j)) = smem(r, j)"),
        method=Method.EXHAUSTIVE,
        check=Cases(lambda: _each(copied, look_at_copy), "factors"),
        preconditions=(*preconditions, *RESTS_ON),
        controls=(
            Control(
                "lines 128 bytes apart in shared memory",
                Cases(lambda: look_at_copy(copied[0], line_units=8), "factors"),
            ),
            Control(
                "the copy starts 16 bytes late",
                Cases(lambda: look_at_copy(copied[0], source_units=1), "factors"),
            ),
        ),
    )


def without_broadcast(layout: Layout) -> Layout:
    """The layout without its modes of stride 0."""
    pairs = [pair for pair in zip(leaves(layout.shape), leaves(layout.stride), strict=True) if pair[1] != 0]
    return Layout(tuple(size for size, _ in pairs), tuple(stride for _, stride in pairs))


def look_at_broadcast(layout: Layout, vector: int) -> str | None:
    """How a layout shares its factors otherwise than among exactly ``vector`` elements, or None."""
    shape = leaves(layout.shape)
    shared = prod(
        size for size, stride in zip(shape, leaves(layout.stride), strict=True) if stride == 0 and isinstance(size, int)
    )
    if shared != vector:
        return f"{canonical(layout)}: {shared} indices share a factor, not {vector}"
    rest = without_broadcast(layout)
    if not tractable(rest).value:
        return f"{canonical(layout)}: its modes without stride 0 do not divide each other"
    if not injective(rest).value:
        return f"{canonical(layout)}: two factors share a place"
    return None


def _broadcast(operands: Sequence[Operand], what: str, *, topic: str, preconditions: tuple[str, ...]) -> Claim:
    def look(*, fewer: bool = False) -> Look:
        looked = 0
        for operand in operands:
            for layout in (operand.smem, operand.tmem):
                looked += 1
                wrong = look_at_broadcast(layout, operand.vector // 2 if fewer else operand.vector)
                if wrong is not None:
                    return f"{operand.name}: {wrong}", looked
        return None, looked

    return Claim(
        name=f"{topic}.broadcast",
        words=f"In shared memory and TMEM of {what}, exactly the elements of one run share a factor: the modes of "
        "stride 0 are those, and the others are tractable, so that no two factors share a place.",
        formulas=("product of the sizes of stride 0 = V", "s_i d_i | d_{i+1} for the other modes, sorted by stride"),
        method=Method.CANONICAL,
        check=Cases(look, "layouts"),
        preconditions=preconditions,
        controls=(Control("half as many elements share a factor", Cases(lambda: look(fewer=True), "layouts")),),
    )


def _each(operands: Sequence[Operand], look: Callable[[Operand], Look]) -> Look:
    looked = 0
    for operand in operands:
        wrong, count = look(operand)
        looked += count
        if wrong is not None:
            return wrong, looked
    return None, looked


def _exchanged(operand: Operand) -> Operand:
    shape, stride = operand.smem.shape, operand.smem.stride
    text = str(Layout(shape, stride)).replace("((16,4)", "((4,16)", 1)
    return replace(operand, smem=parse_plain_layout(text))


def claims() -> tuple[Claim, ...]:
    """The claims on the layouts as they are to be, for tiles of 64 to 256 rows."""
    operands = [explicit_operand(rows=rows, vector=vector) for vector in (16, 32) for rows in (64, 128, 192, 256)]
    return claims_for(operands, whose="64, 128, 192 and 256 rows (16 and 32 elements to a factor, 256 of k)")

"""What an operator of torch does to the origins of its operands.

The launched kernels must compute C, so that an operator of torch may only move what descends from inputs, and change
its format: a function of one element of an input. All else is a computation, also with one operand: elements of two
inputs that are stacked and viewed as one wider element have a square, a carry or a rounding that combines them. An
operator that is not listed counts as one that computes; new operators of torch are therefore judged strictly. An
in-place or ``out=`` form has the effect of its plain form.

What a kernel lays out in one element is not known, so that between kernels that only move bytes a conversion or a
look-up is a function of several elements, and many of them in sequence compute. Two are allowed, as a kernel's operands
and its result may be converted; they cannot add up 64 products or more, which an element of C has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from pytest_nvfp4.sim.descent.origins import NOTHING, Origins, Writer, union

_MOVES: Final = """
    copy _to_copy to clone contiguous lift_fresh alias _foreach_copy
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros new_ones new_full
    zeros_like ones_like full_like rand_like randn_like zero fill _foreach_zero
    cat concat stack hstack vstack dstack repeat repeat_interleave tile expand expand_copy broadcast_to
    index_put _index_put_impl _unsafe_index_put index_copy index_fill scatter
    slice_scatter select_scatter diagonal_scatter as_strided_scatter
    where masked_fill masked_scatter masked_select
    flip fliplr flipud roll rot90 constant_pad_nd pad _pad_enum tril triu diag diag_embed unfold im2col
    reshape reshape_as view _unsafe_view _reshape_copy _reshape_alias flatten ravel unflatten
    permute permute_copy transpose transpose_copy t t_copy movedim moveaxis swapaxes swapdims squeeze unsqueeze
    view_copy slice_copy select_copy as_strided as_strided_copy split_copy unbind_copy pixel_shuffle pixel_unshuffle
    channel_shuffle block_diag meshgrid chunk split split_with_sizes unbind narrow narrow_copy select slice
"""
"""Creation and movement to places that do not depend on inputs, and casts."""
_LOOKUPS: Final = "index _unsafe_index index_select gather take take_along_dim embedding"
"""Movement; or, at an index that is made of one element of an input, the decoding of its code by a table."""
_BITS: Final = """
    bitwise_not bitwise_or bitwise_and bitwise_xor bitwise_left_shift bitwise_right_shift
    __or__ __and__ __xor__ __lshift__ __rshift__ __ior__ __iand__ __ixor__ __ilshift__ __irshift__
"""
"""With constants, movement of bits: no bit of the result depends on two of the operand."""
_JOINS: Final = "bitwise_or __or__ __ior__ bitwise_xor __xor__ __ixor__"
"""How two elements are packed into one."""
_OVERWRITES: Final = "copy _foreach_copy fill zero _foreach_zero uniform normal random bernoulli exponential"
"""In-place forms that keep nothing of what the tensor held."""

_MOVE: Final = frozenset(_MOVES.split())
_LOOK_UP: Final = frozenset(_LOOKUPS.split())
_MOVE_BITS: Final = frozenset(_BITS.split())
_JOIN: Final = frozenset(_JOINS.split())
_KEEP_NOTHING: Final = frozenset(_OVERWRITES.split())
_SCATTERED: Final = frozenset({"index_put", "_index_put_impl", "_unsafe_index_put"})
_REDUCING: Final = (".reduce", ".value_reduce")
"""Overloads of ``scatter`` that multiply or add."""


_MOST_CONVERSIONS: Final = 2
"""Conversions in sequence of what kernels laid out, each after another launch: of operands, and of the result."""


class Effect(Enum):
    """What a result descends from, beside what its operands do."""

    MOVES = "nothing else"
    CONVERTS = "a function of each element"
    COMBINES = "a function of two elements, from which a further function would be a computation"
    COMPUTES = "a computation"


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand on the device.

    Attributes:
        origins: What it descends from.
        size: Bytes of an element.
        selects: Whether it selects places or counts (indices, a mask, repeats, the distance of a shift).
    """

    origins: Origins
    size: int
    selects: bool = False

    @property
    def packed(self) -> bool:
        """Whether an element of it may hold elements of several inputs."""
        return self.origins.inputs and self.size > self.origins.unit


def plain(operator: str) -> str:
    """Return the name of an operator without its namespace and the mark of its in-place form."""
    name = operator.rpartition("::")[2].partition(".")[0]
    return name if name.endswith("__") else name.removesuffix("_")


def is_copy(operator: str) -> bool:
    """Return whether an operator copies a tensor between host and device."""
    return plain(operator) in ("copy", "_to_copy")


def updates(operator: str) -> bool:
    """Return whether an operator changes a tensor in place, so that the result descends from what was there, too."""
    name = operator.rpartition("::")[2].partition(".")[0]
    in_place = name.startswith("__i") if name.endswith("__") else name.endswith("_")
    return in_place and plain(name) not in _KEEP_NOTHING


def effect(operator: str, operands: Sequence[Operand], *, converts: bool = False, accumulates: bool = False) -> Effect:
    """Return the effect of an operator.

    Args:
        operands: Its operands on the device, and what it updates.
        converts: Whether the result has values of another format, other than a wider or narrower integer.
        accumulates: Whether it adds to what a tensor holds (``index_put`` with ``accumulate``).
    """
    name = plain(operator)
    descending = [operand for operand in operands if operand.origins.inputs]
    values = [operand for operand in descending if not operand.selects]
    selects = len(values) < len(descending)
    apart = not any(operand.packed or operand.origins.combined for operand in descending)
    if not descending:
        return Effect.MOVES
    if (accumulates and name in _SCATTERED) or operator.endswith(_REDUCING):
        return Effect.COMPUTES
    if name in _LOOK_UP and selects:
        return Effect.COMPUTES if not apart else Effect.COMBINES if values else Effect.CONVERTS
    if name in _MOVE | _LOOK_UP and not selects and (apart or not converts):
        return Effect.CONVERTS if converts else Effect.MOVES
    if name in _MOVE_BITS and not selects and len(values) == 1:
        return Effect.MOVES
    if name in _JOIN and not any(operand.origins.combined for operand in values):
        return Effect.COMBINES
    return Effect.COMPUTES


def result(operator: str, operands: Sequence[Operand], done: Effect, *, size: int, writer: Writer) -> Origins:
    """Return what the result of an operator descends from, given its effect.

    Args:
        size: Bytes of an element of the result.
    """
    laid = [operand.origins.conversions for operand in operands if operand.origins.laid]
    converted = done is Effect.CONVERTS and bool(laid)
    own = Origins(conversions=1 + max(laid)) if converted else NOTHING
    if done is Effect.COMPUTES or own.conversions > _MOST_CONVERSIONS:
        own = Origins(computed=frozenset({writer}))
    elif done is Effect.COMBINES:
        own = Origins(combined=True)
    origins = union([own, *(operand.origins for operand in operands)])
    if not origins.inputs:
        return origins
    # Bits of a packed element that are shifted leave the bytes of their own elements.
    torn = 0 if plain(operator) in _MOVE_BITS else size
    units = (min(operand.origins.unit, torn) if operand.packed else size for operand in operands)
    return replace(origins, unit=min(units), laid=origins.laid and not converted)

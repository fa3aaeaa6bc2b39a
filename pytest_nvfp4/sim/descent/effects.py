"""What an operator of torch does to the origins of its operands.

An operator that is not listed counts as one that computes; new operators of torch are therefore judged strictly. An
in-place or ``out=`` form has the effect of its plain form.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from pytest_nvfp4.sim.descent.origins import Origins

_MOVES: Final = """
    copy _to_copy to clone contiguous lift_fresh alias
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros new_ones new_full
    zeros zeros_like ones ones_like full full_like zero fill eye arange linspace scalar_tensor
    rand rand_like randn randn_like randint randint_like randperm bernoulli uniform normal random exponential
    cat concat stack hstack vstack dstack repeat repeat_interleave tile expand expand_copy broadcast_to
    index_put _index_put_impl index_copy index_fill scatter
    slice_scatter select_scatter diagonal_scatter as_strided_scatter masked_select
    flip fliplr flipud roll rot90 constant_pad_nd pad _pad_enum tril triu diag diag_embed unfold im2col
    reshape reshape_as view _unsafe_view _reshape_copy _reshape_alias flatten ravel unflatten resize
    permute permute_copy transpose transpose_copy t t_copy movedim moveaxis swapaxes swapdims squeeze unsqueeze
    view_copy slice_copy select_copy as_strided as_strided_copy split_copy unbind_copy pixel_shuffle pixel_unshuffle
    channel_shuffle block_diag meshgrid chunk split split_with_sizes unbind narrow narrow_copy select slice
    bitwise_not nonzero argwhere _unsafe_index_put _foreach_copy _foreach_zero
"""
"""Creation, data movement and conversion of types: results descend from what operands do."""
_LOOKUPS: Final = "index _unsafe_index index_select gather take take_along_dim embedding"
"""Movement, or with indices that descend from inputs a function of them: fp4 codes are decoded so."""
_LOGIC: Final = """
    bitwise_or bitwise_and bitwise_xor bitwise_left_shift bitwise_right_shift where masked_fill masked_scatter
    __or__ __and__ __xor__ __lshift__ __rshift__ __ior__ __iand__ __ixor__ __ilshift__ __irshift__
"""
"""Functions of bits: elements are packed so."""
_ELEMENTWISE: Final = """
    abs neg negative positive add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod
    pow sqrt rsqrt square reciprocal exp exp2 expm1 log log2 log10 log1p ldexp frexp
    floor ceil round trunc frac sign sgn signbit copysign clamp clip clamp_min clamp_max minimum maximum fmin fmax
    nan_to_num relu relu6 hardtanh threshold sigmoid tanh
    eq ne lt le gt ge logical_not logical_and logical_or logical_xor isnan isinf isfinite isposinf isneginf
    lerp addcmul addcdiv
"""
"""Element by element: a conversion while one operand descends from inputs, a computation if two of them do."""
_OVERWRITES: Final = "copy _foreach_copy fill zero _foreach_zero uniform normal random bernoulli exponential"
"""In-place forms that keep nothing of what the tensor held."""

_MOVE: Final = frozenset(_MOVES.split())
_LOOK_UP: Final = frozenset(_LOOKUPS.split())
_COMBINE_BITS: Final = frozenset(_LOGIC.split())
_CONVERT: Final = frozenset(_ELEMENTWISE.split())
_KEEP_NOTHING: Final = frozenset(_OVERWRITES.split())
_SCATTERED: Final = frozenset({"index_put", "_index_put_impl", "_unsafe_index_put"})
_REDUCING: Final = (".reduce", ".value_reduce")
"""Overloads of ``scatter`` that multiply or add."""


class Effect(Enum):
    """What a result descends from, beside what its operands do."""

    MOVES = "nothing else"
    COMBINES = "a function of few inputs, from which a further function would be a computation"
    COMPUTES = "a computation"


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


def effect(operator: str, operands: Sequence[Origins], *, accumulates: bool = False) -> Effect:
    """Return the effect of an operator.

    Args:
        operands: What its operands on the device descend from, in order.
        accumulates: Whether it adds to what a tensor holds (``index_put`` with ``accumulate``).
    """
    name, descending = plain(operator), sum(operand.inputs for operand in operands)
    adds = (accumulates and name in _SCATTERED) or operator.endswith(_REDUCING)
    if not descending or (name in _MOVE and not adds):
        return Effect.MOVES
    if name in _CONVERT:
        return Effect.COMPUTES if descending > 1 else Effect.MOVES
    indices = any(operand.inputs for operand in operands[1:])
    if name in _LOOK_UP and not indices:
        return Effect.MOVES
    if name in _COMBINE_BITS and descending == 1:
        return Effect.MOVES
    if name in _LOOK_UP | _COMBINE_BITS and not any(operand.combined for operand in operands):
        return Effect.COMBINES
    return Effect.COMPUTES

"""Input families: kinds of inputs, each of which shows faults that the others hide.

A family makes the inputs of any problem from its seed, see :mod:`~pytest_nvfp4.numerics.draw`.
:mod:`~pytest_nvfp4.selfcheck.scoring` measures which wrong kernels each one catches; together the default families
catch all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np

from pytest_nvfp4.numerics import probes, scale_layout
from pytest_nvfp4.numerics.arrays import Bytes, NumericsError, ceil_div
from pytest_nvfp4.numerics.draw import Draw
from pytest_nvfp4.numerics.formats import E4M3
from pytest_nvfp4.numerics.inputs import GroupInput, Guard, Operands, ProblemInput, assemble
from pytest_nvfp4.numerics.quantise import BLOCK, quantise
from pytest_nvfp4.numerics.threads import shared
from pytest_nvfp4.problem import Group, Problem

_LARGE = 1 << 22
"""Elements from which starting threads pays off."""
_ALL_CODES = tuple(range(16))
_FINITE = tuple(range(E4M3.largest + 1))
_NAN_GUARD = Guard()
# GPU MODE allocates no guards around its tensors, so the memory behind them is assumed to be finite.
_PLAIN_GUARD = Guard(scale_byte=probes.SCALE_ONE, packed_byte=0x00)


Maker = Callable[[Group, Draw, int], Operands]
"""Function from a group's sizes, stream and index to its operands."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of inputs.

    Attributes:
        name: name in options and node ids.
        description: the faults that it shows.
        codes: element codes it can contain; it cannot distinguish kernels that agree on them.
        scales: scale codes it can contain in the factors that count.
        make: makes one group's operands.
        default: whether a check runs it by default.
        guard: contents of the memory around the tensors.
        shapes: the family's own problem, if it tests sizes or needs certain ones; else None.
    """

    name: str
    description: str
    codes: frozenset[int]
    scales: frozenset[int]
    make: Maker
    default: bool = True
    guard: Guard = field(default=_NAN_GUARD)
    shapes: Problem | None = None

    def group(self, problem: Problem, index: int, *, blank: bool = False) -> GroupInput:
        """Return the inputs of one group of a problem, which do not depend on other groups.

        If ``blank``, the elements of A and B are left out as far as the family draws them at once, and the scale
        factors are others of the family.

        Raises:
            NumericsError: l is not 1 or k is not a multiple of 16.
        """
        group = problem.groups[index]
        if group.k % BLOCK:
            raise NumericsError(f"group {index} ({group}): k must be a multiple of 16 for family {self.name!r}")
        shapes = _shapes(group)[:2] if blank else ()
        made = self.make(group, Draw(seed=problem.seed, family=self.name, index=index, blank=shapes), index)
        return assemble(group, made, self.guard)

    def generate(self, problem: Problem, *, blank: bool = False) -> ProblemInput:
        """Return the inputs of every group. Raises NumericsError as :meth:`group` does, which explains ``blank``."""
        elements = sum((group.m + group.n) * group.k for group in problem.groups)
        groups = shared(partial(self.group, problem, blank=blank), range(len(problem.groups)), large=elements >= _LARGE)
        return ProblemInput(problem=problem, family=self.name, groups=tuple(groups))


def _shapes(group: Group) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return the shapes of a, b, sfa and sfb."""
    blocks = ceil_div(group.k, BLOCK)
    return (group.m, group.k // 2), (group.n, group.k // 2), (group.m, blocks), (group.n, blocks)


def _uniform(codes: Iterable[int], scales: Iterable[int], *, padding: int = 0) -> Maker:
    """Return a maker that draws elements and scale factors evenly and independently from these codes."""
    codes, scales = tuple(codes), tuple(scales)

    def make(group: Group, draw: Draw, _index: int) -> Operands:
        a, b, sfa, sfb = _shapes(group)
        packed_a, packed_b = draw.packed(codes, a), draw.packed(codes, b)
        return Operands(packed_a, packed_b, draw.choice(scales, sfa), draw.choice(scales, sfb), padding, padding)

    return make


_GPUMODE_SCALES = (0x38, 0x40)


def _gpumode(group: Group, draw: Draw, _index: int) -> Operands:
    a, b, sfa, sfb = _shapes(group)

    def elements(shape: tuple[int, int]) -> Bytes:
        # randint(255) excludes 255; the mask keeps the sign and the two low bits of each element.
        return draw.below(255, shape) & np.uint8(0xBB)

    def padding(rows: int, blocks: int) -> Bytes:
        whole = ceil_div(rows, scale_layout.ROWS) * scale_layout.ROWS
        return draw.choice(_GPUMODE_SCALES, (whole, ceil_div(blocks, scale_layout.BLOCKS) * scale_layout.BLOCKS, 1))

    return Operands(
        a=elements(a),
        b=elements(b),
        sfa=draw.choice(_GPUMODE_SCALES, sfa),
        sfb=draw.choice(_GPUMODE_SCALES, sfb),
        padding_a=padding(*sfa),
        padding_b=padding(*sfb),
    )


_SPARSE_CODES = (*(0x0, 0x8) * 21, *(code for code in _ALL_CODES if code & 7))
"""Three quarters zeroes, of both signs; each other code equally often."""


def _subnormal_output(group: Group, draw: Draw, _index: int) -> Operands:
    """Make sixteen small operands per row: sums of at most 16 * 24^2 units of 2^-20, most below 2^-14."""
    a, b, sfa, sfb = _shapes(group)
    a_bytes, b_bytes = np.zeros(a, dtype=np.uint8), np.zeros(b, dtype=np.uint8)
    width = BLOCK // 2
    for packed in (a_bytes, b_bytes):
        packed[:, -width:] = draw.packed((0x1, 0x9, 0x2, 0xA, 0x3), (packed.shape[0], width))
    return Operands(a_bytes, b_bytes, draw.choice((1, 2), sfa), draw.choice((1, 2), sfb))


_GAUSS_ROWS = 256
"""Rows drawn and quantised at a time, which bounds memory; part of the family's definition, as it orders the draws."""


def _gauss(group: Group, draw: Draw, _index: int) -> Operands:
    made = []
    for rows, (packed_shape, scales_shape) in ((group.m, _shapes(group)[0::2]), (group.n, _shapes(group)[1::2])):
        packed, scales = np.empty(packed_shape, dtype=np.uint8), np.empty(scales_shape, dtype=np.uint8)
        for top in range(0, rows, _GAUSS_ROWS):
            span = slice(top, min(rows, top + _GAUSS_ROWS))
            packed[span], scales[span] = quantise(draw.gaussian((span.stop - top, group.k)))
        made.append((packed, scales))
    (a, sfa), (b, sfb) = made
    return Operands(a, b, sfa, sfb)


def _onehot(group: Group, _draw: Draw, index: int) -> Operands:
    a, sfa = probes.onehot_operand(group.m, group.k, opposite=group.n, start=31 * index)
    b, sfb = probes.onehot_operand(group.n, group.k, opposite=group.m, start=31 * index + 64)
    return Operands(a=a, b=b, sfa=sfa, sfb=sfb)


def _ones_block(group: Group, _draw: Draw, index: int) -> Operands:
    blocks = ceil_div(group.k, BLOCK)
    a, sfa = probes.ones_block_operand(group.m, blocks, start=31 * index)
    b, sfb = probes.ones_block_operand(group.n, blocks, start=31 * index + 57)
    return Operands(a=a, b=b, sfa=sfa, sfb=sfb)


_EIGHTHS = tuple(range(0x38, 0x40))
"""Scale codes 1, 1.125, ... 1.875."""


def _position_scales(group: Group, _draw: Draw, index: int) -> Operands:
    a, b, sfa, sfb = _shapes(group)

    def scales(shape: tuple[int, int], start: int) -> Bytes:
        row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
        return np.uint8(0x38) | probes.position_code(row, block, start=start) % np.uint8(8)

    ones = np.uint8(probes.ONE | probes.ONE << 4)
    return Operands(np.full(a, ones), np.full(b, ones), scales(sfa, 31 * index), scales(sfb, 31 * index + 57))


_EXACT_SCALES = tuple(range(0x30, 0x40))
"""0.5 to 1.875: every mantissa under two exponents, few enough bits that sparse sums are exact beyond K = 16384."""


def _nan_isolated(group: Group, draw: Draw, index: int) -> Operands:
    """Put NaN in one block of one row of A and B of every other group; the rest is as in ``nan_pad``."""
    made = _uniform(_SPARSE_CODES, _EXACT_SCALES)(group, draw, index)
    if index % 2 == 0:
        for scales in (made.sfa, made.sfb):
            rows, blocks = scales.shape
            if rows:
                scales[rows // 2, blocks - 1] = E4M3.nan
    return made


_DEEP = (24, 128, 2304)
"""Nine k-tiles of 256 for one output tile: more than a pipeline has stages, so that each is filled a second time.

GPU MODE's tests have three at most (K = 768): a kernel with one tile a CTA never comes round its ring there, and a
phase that is not flipped, or an index of k-tiles that wraps, shows in its benchmarks alone.
"""

_EDGE_SHAPES = Problem(
    "edge",
    tuple(
        Group(m, n, k)
        for m, n, k in (
            (0, 128, 256),
            (1, 256, 512),
            (40, 384, 256),
            (72, 128, 768),
            (76, 128, 256),
            (127, 128, 512),
            (128, 256, 256),
            (129, 128, 256),
            (255, 128, 256),
            (257, 128, 256),
            _DEEP,
        )
    ),
)
_EDGE_CODES = (0x0, 0x8, 0x8, 0x7, 0xF, 0x5, 0x1)
_EDGE_LARGE = (0x70, 0x78, 0x7E)


def _edge(group: Group, draw: Draw, index: int) -> Operands:
    """Make rows in turn: only -0, sums past fp16's range of either sign, and small values with many -0."""
    made = _uniform(_EDGE_CODES, _EXACT_SCALES)(group, draw, index)
    # A group of one row gets non-zero numbers: with zeros, a kernel that computes nothing would pass.
    turn = (np.arange(group.m) + (3 if group.m == 1 else 0)) % 4
    made.a[turn == 0] = 0x88
    for remainder, code in ((1, 0x77), (2, 0xFF)):
        chosen = turn == remainder
        made.a[chosen] = code
        made.sfa[chosen] = draw.choice(_EDGE_LARGE, (int(chosen.sum()), made.sfa.shape[1]))
    made.b[0::2] &= 0x77
    return made


_PROBE_SHAPES = Problem("probe", (Group(128, 128, 256), Group(136, 256, 512)))

_FAMILIES = (
    Family(
        "gpumode",
        "GPU MODE's own distribution: elements 0, 0.5, 1, 1.5 of either sign, scales 1 and 2, padding of 1 and 2",
        codes=frozenset(code for code in _ALL_CODES if not code & 4),
        scales=frozenset(_GPUMODE_SCALES),
        make=_gpumode,
        guard=_PLAIN_GUARD,
    ),
    Family(
        "pow2_exact",
        "all 16 element codes under scales 2^-3 to 2^0: exact in every order, yet needing the last rounding",
        codes=frozenset(_ALL_CODES),
        scales=frozenset((0x20, 0x28, 0x30, 0x38)),
        make=_uniform(_ALL_CODES, (0x20, 0x28, 0x30, 0x38)),
    ),
    Family(
        "subnormal_sf",
        "all 16 element codes under the seven subnormal scales",
        codes=frozenset(_ALL_CODES),
        scales=frozenset(range(1, 8)),
        make=_uniform(_ALL_CODES, range(1, 8)),
        default=False,
    ),
    Family(
        "subnormal_out",
        "sums of a few smallest operands: most outputs are fp16 subnormals",
        codes=frozenset((0x0, 0x1, 0x9, 0x2, 0xA, 0x3)),
        scales=frozenset((1, 2)),
        make=_subnormal_output,
    ),
    Family(
        "all_scale",
        "all 16 element codes under scales 2^-6 to 2: judged by the bound",
        codes=frozenset(_ALL_CODES),
        scales=frozenset(range(0x08, 0x41)),
        make=_uniform(_ALL_CODES, range(0x08, 0x41)),
        default=False,
    ),
    Family(
        "sparse75",
        "three quarters of the elements are zero, of either sign; scales 0.5 to 1.875: exact, with every mantissa",
        codes=frozenset(_ALL_CODES),
        scales=frozenset(_EXACT_SCALES),
        make=_uniform(_SPARSE_CODES, _EXACT_SCALES),
        default=False,
    ),
    Family(
        "gauss_quantised",
        "normal numbers quantised to NVFP4, as in a model",
        codes=frozenset(_ALL_CODES),
        scales=frozenset(_FINITE),
        make=_gauss,
        default=False,
    ),
    Family(
        "onehot",
        "decode probe: single outputs show each of the 16 x 127 pairs of element and scale code, for A and for B",
        codes=frozenset(_ALL_CODES),
        scales=frozenset(_FINITE),
        make=_onehot,
        shapes=_PROBE_SHAPES,
    ),
    Family(
        "ones_block",
        "position probe: all elements are 1, single outputs show each scale factor, coded by its place",
        codes=frozenset((probes.ONE,)),
        scales=frozenset(_FINITE),
        make=_ones_block,
        shapes=_PROBE_SHAPES,
        default=False,
    ),
    Family(
        "position_scales",
        "all elements are 1 under scales 1 to 1.875 coded by their place: exact at any K",
        codes=frozenset((probes.ONE,)),
        scales=frozenset(_EIGHTHS),
        make=_position_scales,
        default=False,
    ),
    Family(
        "nan_pad",
        "NaN in the padding of the scale factors, behind them and in C: nothing outside the tensors may matter",
        codes=frozenset(_ALL_CODES),
        scales=frozenset(_EXACT_SCALES),
        make=_uniform(_SPARSE_CODES, _EXACT_SCALES, padding=E4M3.nan),
    ),
    Family(
        "nan_isolated",
        "a NaN scale factor in every other group: its row and column are NaN, and nothing else",
        codes=frozenset(_ALL_CODES),
        scales=frozenset((*_EXACT_SCALES, E4M3.nan)),
        make=_nan_isolated,
    ),
    Family(
        "edge",
        "M = 0, 1, 40, 72, 76 and around 128 and 256, uneven N, K to 2304; rows of -0, overflow to infinity",
        codes=frozenset(_EDGE_CODES),
        scales=frozenset((*_EXACT_SCALES, *_EDGE_LARGE)),
        make=_edge,
        shapes=_EDGE_SHAPES,
    ),
)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _FAMILIES})
"""All families by name, in the order of reports."""


def default_families() -> tuple[Family, ...]:
    """Return the families that a check runs by default."""
    return tuple(family for family in FAMILIES.values() if family.default)


def family(name: str) -> Family:
    """Return the family of that name. Raises NumericsError with the known names."""
    if name not in FAMILIES:
        raise NumericsError(f"no input family is called {name!r}; known are {', '.join(FAMILIES)}")
    return FAMILIES[name]

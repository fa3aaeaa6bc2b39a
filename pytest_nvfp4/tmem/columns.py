"""How many TMEM columns a tile of a block-scaled MMA needs, by formula, and what has to be allocated for them.

TMEM is 128 lanes by 512 columns of 32 bits for each SM (PTX ISA, "Tensor Memory"). For a tile of M x N x K over one
CTA, or over a pair of CTAs that share the M rows, each CTA holds

- the accumulator, fp32: one column for each n and each 128 of its rows, times the stages (layouts A and D, "Data Path
  Layout Organization": row r in lane r, column n in column n);
- SFA: its rows in blocks of 128, one column for 32 rows and four scale factors of a row;
- SFB: likewise of the N rows of B, rounded up to 128. All of them in both CTAs of a pair.

M = 128 over a pair gives each CTA 64 rows ("Matrix Shape": ``.kind::mxf4nvf4`` and ``.kind::mxf4`` have it), and the
lanes hold two halves of N (layout B): row r and the lower N / 2 in lane r, the upper in lane 64 + r. So the accumulator
takes N / 2 columns, and SFB half of the columns, the factors of the lower half of N in lanes 0-63 (CuTe:
``ScaleFactorDuplicated2by2``). SFA has a whole block of 128 rows, of which the MMA reads 64.

``tcgen05.alloc`` takes a power of two of columns, 32 to 512. All of this is arithmetic on the tile; that the helpers of
the DSL lay tensors out so is checked by tracing (`pytest_nvfp4.tmem.usage`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.layout.measures import TMEM_COLUMNS

COLUMNS = TMEM_COLUMNS
"""Columns of an SM."""
LEAST_ALLOCATION = 32
LANES = 128
ROWS_A_COLUMN = 32
"""Rows whose scale factors share a column, each of the four quadrants of the lanes holding a copy."""
SCALES_A_COLUMN = 4
"""Scale factors of one row in a column: one byte each."""
WIDEST_N = 256
"""The largest N of one tcgen05.mma."""
MMA_K = 64
"""K of one tcgen05.mma of 4-bit operands (``.kind::mxf4`` and ``.kind::mxf4nvf4``)."""

HALVED_SFA = (
    "make_tmem_layout_sfa lays out the 64 rows that a CTA has of M = 128 over a pair as two blocks of 128; the "
    "MMA reads half of the first, so lay SFA out by hand"
)
"""Why the DSL's layout of SFA is twice the formula's for a `MmaTile.halved`."""


class TmemError(ValueError):
    """A tile, a segment or a schedule that the hardware does not have; the message says what to change."""


def allocation(columns: int) -> int | None:
    """What ``tcgen05.alloc`` must be asked for to hold so many columns; None where they are more than an SM has.

    Raises:
        TmemError: a negative number of columns.
    """
    if columns < 0:
        raise TmemError(f"{columns} TMEM columns: there are none or some, never fewer than none")
    if columns > COLUMNS:
        return None
    return max(LEAST_ALLOCATION, 1 << max(columns - 1, 0).bit_length())


@dataclass(frozen=True, slots=True)
class MmaTile:
    """The tile of one MMA loop, in elements.

    Attributes:
        m, n, k: The tile, over all CTAs that share it.
        ctas: 1, or 2 for ``.cta_group::2``, whose CTAs hold half of the rows each.
        stages: Accumulators, so that an epilogue can run under the next tile's MMA.
        sf_vector: Elements of K that share a scale factor: 16 (NVFP4), 32 (MXFP4).

    Raises:
        TmemError: a tile that the MMA or the DSL's helpers do not have.
    """

    m: int
    n: int
    k: int
    ctas: int = 1
    stages: int = 1
    sf_vector: int = 16

    def __post_init__(self) -> None:
        if self.ctas not in (1, 2):
            raise TmemError(f"{self.ctas} CTAs: tcgen05.mma runs in one CTA or in a pair")
        if self.m <= 0 or (self.m % (LANES * self.ctas) and not self.halved):
            alone = "; M = 64 is legal without block scaling only" if (self.m, self.ctas) == (64, 1) else ""
            pair = f", or {LANES}, which is 64 rows a CTA" if self.ctas == 2 else ""
            raise TmemError(
                f"M = {self.m} over {self.ctas} CTA{'s' * (self.ctas > 1)}: a block-scaled MMA has {LANES} rows a CTA, "
                f"so M is a multiple of {LANES * self.ctas}{pair}{alone}"
            )
        step = 8 * self.ctas
        if self.n <= 0 or self.n % step or (self.n > WIDEST_N and self.n % WIDEST_N):
            raise TmemError(
                f"N = {self.n}: one MMA has {step} to {WIDEST_N} columns in steps of {step} with {self.ctas} "
                f"CTA{'s' * (self.ctas > 1)}; a wider tile is a multiple of {WIDEST_N}"
            )
        if self.k <= 0 or self.k % MMA_K:
            raise TmemError(f"K = {self.k}: one MMA has K = {MMA_K}, so a tile is a multiple of that")
        if self.stages < 1:
            raise TmemError(f"{self.stages} accumulator stages: at least 1 is needed")
        if self.sf_vector not in (16, 32):
            raise TmemError(f"{self.sf_vector} elements a scale factor: there are 16 (NVFP4) and 32 (MXFP4)")

    @property
    def halved(self) -> bool:
        """Whether it is M = 128 over a pair: 64 rows a CTA, and N in two halves of the lanes."""
        return (self.m, self.ctas) == (LANES, 2)

    def __str__(self) -> str:
        extra = [f"{self.ctas} CTAs"] * (self.ctas > 1) + [f"{self.stages} stages"] * (self.stages > 1)
        return f"{self.m}x{self.n}x{self.k}" + (f" ({', '.join(extra)})" if extra else "")


@dataclass(frozen=True, slots=True)
class Columns:
    """TMEM columns of each CTA.

    Attributes:
        stage: Of one accumulator.
        stages: How many accumulators.
        sfa, sfb: Of the scale factors of A and B, for one K tile.
    """

    stage: int
    stages: int
    sfa: int
    sfb: int

    @property
    def acc(self) -> int:
        """Of all accumulators, side by side."""
        return self.stage * self.stages

    @property
    def total(self) -> int:
        """Of everything, side by side."""
        return self.acc + self.sfa + self.sfb

    @property
    def allocation(self) -> int | None:
        """What to allocate; None where it does not fit."""
        return allocation(self.total)

    @property
    def slack(self) -> int:
        """Columns of the allocation that stay free; negative: how many an SM lacks."""
        return (self.allocation or COLUMNS) - self.total

    @property
    def ctas_per_sm(self) -> int:
        """CTAs whose allocations an SM holds at once, by TMEM alone."""
        return COLUMNS // self.allocation if self.allocation else 0


def columns(tile: MmaTile) -> Columns:
    """The columns of a tile, by formula."""
    rows = tile.m // tile.ctas
    scales = -(-tile.k // (SCALES_A_COLUMN * tile.sf_vector))
    blocks = LANES // ROWS_A_COLUMN * scales
    return Columns(
        stage=rows * tile.n // LANES,
        stages=tile.stages,
        sfa=-(-rows // LANES) * blocks,
        sfb=-(-tile.n // LANES) * blocks // (2 if tile.halved else 1),
    )


def most_stages(tile: MmaTile) -> int:
    """The most accumulators of this tile that fit side by side with its scale factors; 0 if not even one does."""
    one = columns(tile)
    return max(0, (COLUMNS - one.sfa - one.sfb) // one.stage)

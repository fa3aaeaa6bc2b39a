"""TMEM columns of a block-scaled MMA tile by formula, and the allocation that holds them.

TMEM is 128 lanes by 512 columns of 32 bits for each SM (PTX ISA, "Tensor Memory"). For a tile of M x N x K over one
CTA, or over a pair of CTAs that share the M rows, each CTA holds

- the accumulator, fp32: one column for each n and each 128 of its rows, times the stages (layouts A and D, "Data Path
  Layout Organization": row r in lane r, column n in column n);
- SFA: its rows in blocks of 128, one column for 32 rows and four scale factors of a row;
- SFB: the same for the N rows of B, rounded up to 128; each CTA of a pair holds all of them.

M = 128 over a pair gives each CTA 64 rows ("Matrix Shape": ``.kind::mxf4nvf4`` and ``.kind::mxf4`` have it), and the
lanes hold two halves of N (layout B): row r and the lower N / 2 in lane r, the upper in lane 64 + r. So the accumulator
takes N / 2 columns, and SFB half of the columns, the factors of the lower half of N in lanes 0-63 (CuTe:
``ScaleFactorDuplicated2by2``). SFA has a whole block of 128 rows, of which the MMA reads 64.

``tcgen05.alloc`` takes a power of two of columns, 32 to 512. All of this is arithmetic on the tile;
`pytest_nvfp4.tmem.usage` compares it with the layouts of traced kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.layout.measures import TMEM_COLUMNS

COLUMNS = TMEM_COLUMNS
"""TMEM capacity of an SM in columns."""
LEAST_ALLOCATION = 32
"""Smallest number of columns that ``tcgen05.alloc`` accepts."""
LANES = 128
ROWS_A_COLUMN = 32
"""Rows whose scale factors share a column; each of the four quadrants of the lanes holds a copy."""
SCALES_A_COLUMN = 4
"""Scale factors of one row in a column: one byte each."""
WIDEST_N = 256
"""Largest N of one tcgen05.mma."""
MMA_K = 64
"""K of one tcgen05.mma of 4-bit operands (``.kind::mxf4`` and ``.kind::mxf4nvf4``)."""

HALVED_SFA = (
    "make_tmem_layout_sfa allocates two blocks of 128 rows for the 64 rows of a CTA when M = 128 is split over a pair; "
    "the MMA reads half of the first, so construct the layout of SFA explicitly"
)
"""Reason why the DSL's layout of SFA is twice the formula's for a tile with `MmaTile.halved`."""


class TmemError(ValueError):
    """A tile, segment or schedule that the hardware does not support; the message names the legal values."""


def allocation(columns: int) -> int | None:
    """Return the smallest ``tcgen05.alloc`` that holds this many columns, or None above the capacity of an SM.

    Allocations are powers of two from 32 to 512 (PTX ISA, "tcgen05.alloc").

    Raises:
        TmemError: a negative number of columns.
    """
    if columns < 0:
        raise TmemError(f"{columns} TMEM columns: the number must not be negative")
    if columns > COLUMNS:
        return None
    return max(LEAST_ALLOCATION, 1 << max(columns - 1, 0).bit_length())


@dataclass(frozen=True, slots=True)
class MmaTile:
    """Tile of one MMA main loop, in elements.

    Attributes:
        m, n, k: The tile, over all CTAs that share it.
        ctas: 1, or 2 for ``.cta_group::2``, whose CTAs hold half of the rows each.
        stages: Number of accumulators; with 2, the epilogue of a tile overlaps the MMA of the next.
        sf_vector: Elements of K that share a scale factor: 16 (NVFP4), 32 (MXFP4).

    Raises:
        TmemError: the MMA or the DSL's helpers do not support the tile.
    """

    m: int
    n: int
    k: int
    ctas: int = 1
    stages: int = 1
    sf_vector: int = 16

    def __post_init__(self) -> None:
        if self.ctas not in (1, 2):
            raise TmemError(f"{self.ctas} CTAs: tcgen05.mma runs in 1 CTA or in a pair")
        if self.m <= 0 or (self.m % (LANES * self.ctas) and not self.halved):
            alone = "; M = 64 is legal only without block scaling" if (self.m, self.ctas) == (64, 1) else ""
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
            raise TmemError(f"K = {self.k}: one MMA has K = {MMA_K}, so K must be a multiple of {MMA_K}")
        if self.stages < 1:
            raise TmemError(f"{self.stages} accumulator stages: at least 1 is needed")
        if self.sf_vector not in (16, 32):
            raise TmemError(f"{self.sf_vector} elements a scale factor: use 16 (NVFP4) or 32 (MXFP4)")

    @property
    def halved(self) -> bool:
        """Whether M = 128 is split over a pair: 64 rows a CTA, and N in two halves of the lanes."""
        return (self.m, self.ctas) == (LANES, 2)

    def __str__(self) -> str:
        extra = [f"{self.ctas} CTAs"] * (self.ctas > 1) + [f"{self.stages} stages"] * (self.stages > 1)
        return f"{self.m}x{self.n}x{self.k}" + (f" ({', '.join(extra)})" if extra else "")


@dataclass(frozen=True, slots=True)
class Columns:
    """TMEM columns of each CTA.

    Attributes:
        stage: Columns of one accumulator.
        stages: Number of accumulators.
        sfa, sfb: Columns of the scale factors of A and B, for one K tile.
    """

    stage: int
    stages: int
    sfa: int
    sfb: int

    @property
    def acc(self) -> int:
        """Columns of all accumulators, side by side."""
        return self.stage * self.stages

    @property
    def total(self) -> int:
        """Columns of accumulators and scale factors, side by side."""
        return self.acc + self.sfa + self.sfb

    @property
    def allocation(self) -> int | None:
        """Smallest sufficient allocation; None if it does not fit."""
        return allocation(self.total)

    @property
    def slack(self) -> int:
        """Unused columns of the allocation; negative if an SM has too few."""
        return (self.allocation or COLUMNS) - self.total

    @property
    def ctas_per_sm(self) -> int:
        """Number of CTAs whose allocations fit an SM at once, by TMEM alone."""
        return COLUMNS // self.allocation if self.allocation else 0


def columns(tile: MmaTile) -> Columns:
    """Return the columns of a tile by formula."""
    rows = tile.m // tile.ctas
    # A column holds four factors (one byte each) of 32 rows, so a block of 128 rows takes 4 columns for 4 factors of k.
    scales = -(-tile.k // (SCALES_A_COLUMN * tile.sf_vector))
    blocks = LANES // ROWS_A_COLUMN * scales
    return Columns(
        # 128 lanes: 64 rows (M = 128 over a pair) use both halves of the lanes and so half of the columns.
        stage=rows * tile.n // LANES,
        stages=tile.stages,
        sfa=-(-rows // LANES) * blocks,
        sfb=-(-tile.n // LANES) * blocks // (2 if tile.halved else 1),
    )


def most_stages(tile: MmaTile) -> int:
    """Return the largest number of accumulators that fit beside the tile's scale factors, or 0."""
    need = columns(tile)
    return max(0, (COLUMNS - need.sfa - need.sfb) // need.stage)

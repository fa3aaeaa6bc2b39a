"""What a kernel does with its scale factors: shared memory, the copy to TMEM, and what the MMA reads there.

A tile has ``rows`` rows and KB k-blocks of one MMA (64 elements) each; a factor belongs to V elements, so one MMA takes
64 / V = 4 (NVFP4) or 2 (MXFP4) factors of each row.

* Shared memory: the 128x4 blocks of global memory, 512 bytes each (`pytest_nvfp4.proof.scale_factors`).
* ``tcgen05.cp .32x128b.warpx4``: 32 lines of 16 bytes; line i, byte c goes to TMEM lane i + 32 q, q = 0 .. 3, and byte
  c of four consecutive columns (PTX ISA, "tcgen05.cp").
* ``tcgen05.mma .block_scale`` reads the factors of row r in lane r % 32 of every quadrant, in column base + r // 32,
  with 4 factors all bytes, with 2 those from the byte that the scale-factor id says, 0 or 2 (PTX ISA, "Scale Factor A
  ID", "Scale Factor B ID").

TMEM addresses of one-byte elements count bytes: the lane is ``address >> 18``, the column ``address >> 2 & 0xffff``.
Every place is looked at; nothing here needs a solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.canonical import canonical
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.offsets import domain_size, offset_array
from pytest_nvfp4.layout.signals import injective, tractable
from pytest_nvfp4.layout.tree import leaves
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Method

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LANE = 1 << 18
"""Step of one lane in a TMEM address of one-byte elements."""
LANES, LANE_BYTES = 128, 2048
MMA_K = 64
BLOCK = 512
"""Bytes of 128 rows by 4 factors."""

Look = tuple["str | None", int]


@dataclass(frozen=True, slots=True)
class Operand:
    """The scale factors of A or B in one kernel.

    Attributes:
        name: ``SFA`` or ``SFB``.
        rows: Rows that one CTA's MMA scales: M of a CTA, or N.
        vector: Elements that share a factor.
        smem: Shared memory, ``((rows, 64), 1, KB[, stages])`` -> byte.
        tmem: TMEM, ``(((rows, 4 copies), 64), 1, KB)`` -> address of a byte.
        source: The copy's matrix descriptors, ``(line.., 1, .., KB[, stages])`` -> 16-byte unit; None if not seen.
        target: The copy's TMEM side, ``((32, 16, 4).., 1, .., KB)`` -> address of a byte; None if not seen.
        names: Which variables these are.
    """

    name: str
    rows: int
    vector: int
    smem: Layout
    tmem: Layout
    source: Layout | None = None
    target: Layout | None = None
    names: tuple[str, ...] = ()

    @property
    def factors(self) -> int:
        """Factors of a row that one MMA takes."""
        return MMA_K // self.vector


# --- the layouts as the helpers are to build them -----------------------------------------------------------------


def explicit_smem(*, rows: int, tile_k: int, vector: int, stages: int) -> str:
    """Shared memory of ``rows`` x ``tile_k`` elements a stage, in whole blocks of 128 rows."""
    blocks, ktiles = -(-rows // 128), tile_k // (4 * vector)
    shape_k, stride_k = _mma_modes(tile_k, vector, step=BLOCK)
    return (
        f"((((32,4),{blocks}),({vector},{MMA_K // vector})),1,{shape_k},{stages}):"
        f"((((16,4),{BLOCK * ktiles}),(0,1)),0,{stride_k},{BLOCK * ktiles * blocks})"
    )


def explicit_tmem(*, rows: int, tile_k: int, vector: int) -> str:
    """TMEM of the same tile: a column for 32 rows and four factors, four copies."""
    columns = 4 * -(-rows // 128)
    shape_k, stride_k = _mma_modes(tile_k, vector, step=4 * columns)
    return (
        f"((((32,{columns}),4),({vector},{MMA_K // vector})),1,{shape_k}):"
        f"(((({LANE},4),{32 * LANE}),(0,1)),0,{stride_k})"
    )


def explicit_copy(*, rows: int, tile_k: int, vector: int, stages: int) -> tuple[str, str]:
    """The copy's source in 16-byte units and its target: one instruction for each 512-byte block."""
    blocks, ktiles = -(-rows // 128), tile_k // (4 * vector)
    return (
        f"(((32,4),1),{blocks},{ktiles},{stages}):(((1,0),0),{32 * ktiles},32,{32 * ktiles * blocks})",
        f"(((32,16,4),1),{blocks},{ktiles}):((({LANE},1,{32 * LANE}),0),16,{16 * blocks})",
    )


def _mma_modes(tile_k: int, vector: int, *, step: int) -> tuple[str, str]:
    """Size and stride of the k-blocks: one block of 4 factors holds one MMA's (V = 16) or two's (V = 32)."""
    count = tile_k // MMA_K
    return (str(count), str(step)) if vector == 16 else (f"(2,{count // 2})", f"(2,{step})")


def explicit_operand(*, rows: int, tile_k: int = 256, vector: int = 16, stages: int = 2) -> Operand:
    """An operand with all layouts as they are to be."""
    source, target = explicit_copy(rows=rows, tile_k=tile_k, vector=vector, stages=stages)
    return Operand(
        name=f"{rows} rows, V = {vector}",
        rows=rows,
        vector=vector,
        smem=_layout(explicit_smem(rows=rows, tile_k=tile_k, vector=vector, stages=stages)),
        tmem=_layout(explicit_tmem(rows=rows, tile_k=tile_k, vector=vector)),
        source=_layout(source),
        target=_layout(target),
    )


def _layout(text: str) -> Layout:
    found = parse_layout(text)
    assert isinstance(found, Layout)
    return found


# --- what is looked at --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Every index of an operand's layout, taken apart; arrays of one length."""

    offset: NDArray[np.int64]
    row: NDArray[np.int64]
    copy: NDArray[np.int64]
    k: NDArray[np.int64]
    mma: NDArray[np.int64]
    stage: NDArray[np.int64]

    def within(self, rows: int) -> _Places:
        """Those of the rows that are used."""
        keep = self.row < rows
        return _Places(*(getattr(self, name)[keep] for name in self.__slots__))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and MMAs of k that the layout has."""
        return int(self.row.max()) + 1, int(self.mma.max()) + 1

    def at(self, index: int) -> str:
        """One place in words."""
        copy = f", copy {self.copy[index]}" if self.copy.any() else ""
        return f"row {self.row[index]}, k {self.mma[index] * MMA_K + self.k[index]}, stage {self.stage[index]}{copy}"


def _places(layout: Layout, *, copies: int) -> _Places:
    """The indices of ``((rows x copies, 64), 1, KB[, stages])``. Raises LayoutError for another shape."""
    import numpy as np

    parts = modes(layout)
    if len(parts) not in (3, 4) or len(modes(parts[0])) != 2:
        raise LayoutError(f"{layout}: not of the form ((rows, k), 1, MMAs of k[, stages])")
    row_mode, k_mode = modes(parts[0])
    sizes = [domain_size(part) for part in parts]
    if 0 in sizes:
        raise LayoutError(f"{layout}: it is empty")
    if domain_size(k_mode) != MMA_K or sizes[1] != 1:
        raise LayoutError(
            f"{layout}: an MMA takes 64 elements of k and all rows; here it is {domain_size(k_mode)} elements, and "
            f"{sizes[1]} MMAs along the rows"
        )
    all_rows = domain_size(row_mode)
    rows = all_rows // copies
    index = np.arange(domain_size(layout), dtype=np.int64)
    rest, inner = np.divmod(index, sizes[0])
    k, row = np.divmod(inner, all_rows)
    stage, mma = np.divmod(rest, sizes[2])
    return _Places(offset_array(layout), row % rows, row // rows, k, mma, stage)


def look_at_smem(operand: Operand) -> Look:
    """Whether shared memory holds the tile as blocks of 128 x 4 factors, stage after stage."""
    places = _places(operand.smem, copies=1)
    if (short := _short(operand, places, "shared memory")) is not None:
        return short
    rows, mmas = places.size
    blocks, ktiles = -(-rows // 128), mmas * MMA_K // (4 * operand.vector)
    used = places.within(operand.rows)
    factor = (used.mma * MMA_K + used.k) // operand.vector
    tile = (used.stage * blocks + used.row // 128) * ktiles + factor // 4
    wanted = tile * BLOCK + used.row % 32 * 16 + used.row % 128 // 32 * 4 + factor % 4
    return _first_wrong(operand, used, wanted, lambda byte: f"byte {byte}")


def look_at_tmem(operand: Operand, *, shift: int = 0) -> Look:
    """Whether the TMEM layout is what the MMA reads; with ``shift``, wrongly, so many bytes on."""
    places = _places(operand.tmem, copies=4)
    if (short := _short(operand, places, "TMEM")) is not None:
        return short
    # The address that each MMA is given: its first factor's. The last two bits are the scale-factor id.
    base = places.offset[(places.row == 0) & (places.copy == 0) & (places.k == 0) & (places.stage == 0)] + shift
    legal = {0} if operand.factors == 4 else {0, 2}
    for mma, address in enumerate(base.tolist()):
        if address % 4 not in legal:
            return f"{operand.name}: MMA {mma} starts at byte {address % 4} of a column, and may at {legal}", len(base)
    used = places.within(operand.rows)
    lane = used.row % 32 + 32 * used.copy
    wanted = base[used.mma] + lane * LANE + used.row // 32 * 4 + used.k // operand.vector
    return _first_wrong(operand, used, wanted, _tmem)


def _short(operand: Operand, places: _Places, where: str) -> Look | None:
    """A layout that has fewer rows than the MMA reads."""
    rows, _ = places.size
    if rows >= operand.rows:
        return None
    return f"{operand.name}: {where} has {rows} rows, and the MMA reads {operand.rows}", 1


def _first_wrong(operand: Operand, used: _Places, wanted: NDArray[np.int64], shown: Callable[[int], str]) -> Look:
    import numpy as np

    wrong = np.flatnonzero(used.offset != wanted)
    if not len(wrong):
        return None, len(wanted)
    at = int(wrong[0])
    return f"{operand.name}, {used.at(at)} is at {shown(int(used.offset[at]))}, not {shown(int(wanted[at]))}", len(
        wanted
    )


def _tmem(address: int) -> str:
    return f"lane {address // LANE}, column {address % LANE // 4}, byte {address % 4}"


def look_at_copy(operand: Operand, *, line_units: int = 1, source_units: int = 0) -> Look:
    """Whether, after the copies of a stage, each MMA finds at its places the bytes of its rows and k-blocks.

    Wrong with ``line_units`` 8 (lines 128 bytes apart) or ``source_units`` (16-byte units that the copy starts late).
    """
    import numpy as np

    if operand.source is None or operand.target is None:
        raise LayoutError(f"{operand.name}: its copy was not seen")
    stages = domain_size(modes(operand.smem)[3]) if len(modes(operand.smem)) == 4 else 1
    starts, writes = _starts(operand.source, stages=stages), _starts(operand.target, stages=1)[0]
    if len(starts[0]) != len(writes):
        raise LayoutError(f"{operand.name}: {len(starts[0])} sources and {len(writes)} targets of copies do not pair")
    step = leaves(modes(operand.source)[0].stride)[0]
    line_step = (step if isinstance(step, int) else 1) * line_units * 16
    smem, tmem = _places(operand.smem, copies=1), _places(operand.tmem, copies=4)
    short = _short(operand, smem, "shared memory") or _short(operand, tmem, "TMEM")
    if short is not None:
        return short
    if smem.size[1] != tmem.size[1]:
        return f"{operand.name}: shared memory has {smem.size[1]} MMAs of k, and TMEM {tmem.size[1]}", 1
    smem, tmem = smem.within(operand.rows), tmem.within(operand.rows)
    read = tmem.k % operand.vector == 0
    row, k, mma, place = tmem.row[read], tmem.k[read], tmem.mma[read], tmem.offset[read]
    line, byte = np.meshgrid(np.arange(32), np.arange(16), indexing="ij")
    written = [(line + 32 * quadrant) * LANE + byte for quadrant in range(4)]
    claimed = offset_array(modes(operand.target)[0])
    if claimed.tolist() != np.stack([part.T for part in written]).ravel().tolist():
        return f"{operand.name}: a copy's TMEM side is {modes(operand.target)[0]}, and lines go to other places", 1
    for address in writes:
        if address // LANE or address + 16 > LANE_BYTES:
            return f"{operand.name}: a copy starts at {_tmem(address)}; it must at lane 0 of columns that exist", 1
    if len(outside := np.flatnonzero((place // LANE >= LANES) | (place % LANE >= LANE_BYTES) | (place < 0))):
        return f"{operand.name}: the MMA reads {_tmem(int(place[outside[0]]))}, which is outside TMEM", 1
    due = np.zeros((operand.rows, MMA_K, int(smem.mma.max()) + 1), np.int64)
    for stage in range(stages):
        image = np.full((LANES, LANE_BYTES), -1, np.int64)
        for unit, address in zip(starts[stage], writes, strict=True):
            taken = (unit + source_units) * 16 + line * line_step + byte
            for quadrant in range(4):
                image[line + 32 * quadrant + address // LANE, address % LANE + byte] = taken
        now = smem.stage == stage
        due[smem.row[now], smem.k[now], smem.mma[now]] = smem.offset[now]
        got, wanted = image[place // LANE, place % LANE], due[row, k, mma]
        wrong = np.flatnonzero(got != wanted)
        if len(wrong):
            at = int(wrong[0])
            byte_got = int(got[at])
            found = f"byte {byte_got} of shared memory, not {wanted[at]}" if byte_got >= 0 else "written by no copy"
            return (
                f"{operand.name}, stage {stage}, row {row[at]}, k {mma[at] * MMA_K + k[at]}: the MMA reads "
                f"{_tmem(int(place[at]))}, which is {found}"
            ), (stage + 1) * len(place)
    return None, stages * len(place)


def _starts(layout: Layout, *, stages: int) -> list[list[int]]:
    """Where each instruction starts, by stage: the values of all modes but the first, which is one instruction's."""
    inner = domain_size(modes(layout)[0])
    found = offset_array(layout)[::inner] if inner else offset_array(layout)
    if not stages or len(found) % stages:
        raise LayoutError(f"{layout}: {len(found)} instructions are no whole number for each of {stages} stages")
    return found.reshape(stages, -1).tolist()


# --- claims -------------------------------------------------------------------------------------------------------

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
        Claim(
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
        ),
        Claim(
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
        ),
    ]
    copied = [operand for operand in operands if operand.source is not None and operand.target is not None]
    found.append(_broadcast(operands, what, topic=topic, preconditions=preconditions))
    copied_what = whose or " and ".join(operand.name for operand in copied)
    if copied:
        found.append(
            Claim(
                name=f"{topic}.copy",
                words=f"After the copies of a stage, the MMA finds for every (row, k-block) of {copied_what} the byte "
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
        )
    return tuple(found)


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
    return replace(operand, smem=_layout(text))


def claims() -> tuple[Claim, ...]:
    """The claims on the layouts as they are to be, for tiles of 64 to 256 rows."""
    operands = [explicit_operand(rows=rows, vector=vector) for vector in (16, 32) for rows in (64, 128, 192, 256)]
    return claims_for(operands, whose="64, 128, 192 and 256 rows (16 and 32 elements to a factor, 256 of k)")

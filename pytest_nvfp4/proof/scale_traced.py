"""The scale factors of a traced kernel: which of its named layouts they are, and what is claimed of them.

Layouts are found by their types, not by a kernel's names: one-byte floats, a mode of stride 0 that shares a factor, and
the address space. Only whether a layout is A's or B's is taken from its name (``sfa``, ``sfb``). What a kernel does not
bind to a name is not seen, and the claim on it is then not made but reported as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.canonical import canonical, coalesced_modes
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import TypeInfo, dtype_bits, parse_layout, parse_plain_layout
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.offsets import domain_size
from pytest_nvfp4.layout.tree import Dynamic, Leaf, is_static, leaves
from pytest_nvfp4.proof.scale_loads import Load, find_load, load_claim
from pytest_nvfp4.proof.scale_on_chip import claims_for
from pytest_nvfp4.proof.scale_operand import BLOCK, LANES, MMA_K, Operand, explicit_smem, explicit_tmem
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Look, Method

_MMA = re.compile(r"mma_bs<(\d+)x(\d+)x(\d+), num_cta = ([12])\b.*\bvec_size = (\d+)")


Known = Sequence["tuple[Record, TypeInfo]"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a kernel's layouts show.

    Attributes:
        operands: Scale factors with shared memory and TMEM both seen.
        gmem: Layouts of scale factors in global memory, by name.
        missing: What was looked for and not seen, a sentence each.
        loads: How TMA fills shared memory, of the operands for which that was seen.
    """

    operands: tuple[Operand, ...]
    gmem: tuple[tuple[str, Layout], ...]
    missing: tuple[str, ...]
    loads: tuple[Load, ...] = ()


@dataclass(frozen=True, slots=True)
class _Mma:
    rows_m: int
    rows_n: int
    k: int
    vector: int
    ctas: int


def find(records: Sequence[Record]) -> Found:
    """The scale factors among a kernel's named layouts; damaged or unreadable types are passed over."""
    known = [(record, info) for record in records if (info := _info(record)) is not None]
    named = [(record.name.lower(), mma) for record, _ in known if (mma := _mma(record.raw)) is not None]
    # CUTLASS's kernels have a second tiled MMA that only partitions SFB; no instruction is made from it.
    own = [found for found in named if "sfb" not in found[0]] or named
    # All tcgen05 instructions of a kernel have one .cta_group: beside an MMA of a pair, one of one CTA only partitions.
    pairs = [found for found in own if found[1].ctas == 2]
    mmas = sorted({mma for _, mma in pairs or own}, key=repr)
    gmem = tuple(
        (record.name, info.layout)
        for record, info in known
        if isinstance(info.layout, Layout)
        and (
            (info.space == "gmem" and _is_in_blocks(info))
            or (info.space is None and _vector_of_atom(info.layout) is not None)
        )
    )
    unseen = _unseen([name.lower() for name, _ in gmem])
    if any(mma.k != MMA_K for mma in mmas):
        return Found((), gmem, (*unseen, f"an MMA of K = {mmas[0].k}; only K = {MMA_K} (4-bit operands) is followed"))
    if any(mma.rows_m != LANES for mma in mmas):
        return Found((), gmem, (*unseen, HALF_ROWS))
    if len(mmas) != 1:
        many = "no block-scaled MMA is bound to a name" if not mmas else f"there are {len(mmas)} block-scaled MMAs"
        return Found((), gmem, (*unseen, f"{many}; which layouts belong together is told from one"))
    operands: list[Operand] = []
    missing = list(unseen)
    for letter in "ab":
        found = _operand(known, mmas[0], letter)
        if isinstance(found, Operand):
            operands.append(found)
            if found.source is None or found.target is None:
                side = "source descriptors" if found.source is None else "TMEM side"
                missing.append(
                    f"{found.name}: the {side} of its copy to TMEM are not bound to a name with 'sf{letter}' in it"
                )
        else:
            missing.append(found)
    loads = [find_load(operand, _named(known, operand.name)) for operand in operands]
    missing += [said for said in loads if isinstance(said, str)]
    if any(load is not None for load in loads):
        missing += [
            f"{operand.name}: its load from global memory is not bound to names, and the other operand's is"
            for operand, load in zip(operands, loads, strict=True)
            if load is None
        ]
    return Found(tuple(operands), gmem, tuple(missing), tuple(load for load in loads if isinstance(load, Load)))


def _named(known: Known, name: str) -> list[tuple[str, TypeInfo]]:
    """The types whose names have the operand's in them."""
    return [(record.name, info) for record, info in known if name.lower() in record.name.lower()]


def _unseen(names: Sequence[str]) -> tuple[str, ...]:
    """What is missing in global memory; names may say of neither operand that it is theirs, as ``operands[2]`` does."""
    if not names:
        return ("no layout of scale factors in global memory is bound to a name",)
    seen = {letter for letter in "ab" if any(f"sf{letter}" in name for name in names)}
    return tuple(
        f"SF{letter.upper()}: no layout of blocks of 128 rows by 4 factors in global memory has 'sf{letter}' in its "
        "name, and the other operand's has"
        for letter in "ab"
        if len(seen) == 1 and letter not in seen
    )


def _info(record: Record) -> TypeInfo | None:
    try:
        return record.readable
    except LayoutError:
        return None


def _mma(raw: str) -> _Mma | None:
    found = _MMA.search(raw)
    if found is None:
        return None
    m, n, k, ctas, vector = map(int, found.groups())
    return _Mma(m // ctas, n, k, vector, ctas)


def _operand(known: Known, mma: _Mma, letter: str) -> Operand | str:
    """The scale factors of A or B, or what of them is not seen."""
    name = f"SF{letter.upper()}"
    mine = [
        (record, info, info.layout)
        for record, info in known
        if isinstance(info.layout, Layout) and f"sf{letter}" in record.name.lower()
    ]
    smem = [(r.name, layout) for r, info, layout in mine if info.space == "smem" and _is_smem(layout, mma.vector)]
    tmem = [(r.name, layout) for r, info, layout in mine if info.space == "tmem" and _is_tmem(layout, mma.vector)]
    for where, seen in (("shared memory", smem), ("TMEM", tmem)):
        if not seen:
            return f"{name}: no tensor of its factors in {where} is bound to a name with 'sf{letter}' in it"
        if len({str(canonical(layout)) for _, layout in seen}) > 1:
            both = " and ".join(each for each, _ in seen)
            return f"{name}: {both} are different layouts in {where}; which the MMA uses is not known"
    # Of views of one tensor, the whole one: a slice of a stage has fewer indices.
    lines = [(r.name, layout) for r, info, layout in mine if info.family == "smem_desc_view" and _is_lines(layout)]
    copied = [(r.name, layout) for r, info, layout in mine if info.space == "tmem" and _is_copied(layout)]
    source, target = (max(seen, key=lambda one: domain_size(one[1]), default=None) for seen in (lines, copied))
    names = [smem[0][0], tmem[0][0], *(found[0] for found in (source, target) if found)]
    return Operand(
        name=name,
        rows=mma.rows_m if letter == "a" else mma.rows_n,
        vector=mma.vector,
        smem=smem[0][1],
        tmem=tmem[0][1],
        source=source[1] if source else None,
        target=target[1] if target else None,
        names=tuple(names),
    )


def _is_static_of(layout: Layout, ranks: tuple[int, ...]) -> bool:
    return len(modes(layout)) in ranks and is_static(layout.shape) and is_static(layout.stride)


def _scaled_tile(layout: Layout, vector: int, ranks: tuple[int, ...]) -> bool:
    """``((rows, (V, 64 / V)), 1, KB..)`` with stride 0 among the V elements that share a factor."""
    if not _is_static_of(layout, ranks) or len(modes(modes(layout)[0])) != 2:
        return False
    k_mode = modes(modes(layout)[0])[1]
    return domain_size(k_mode) == MMA_K and (leaves(k_mode.shape)[0], leaves(k_mode.stride)[0]) == (vector, 0)


def _is_smem(layout: Layout, vector: int) -> bool:
    return _scaled_tile(layout, vector, (3, 4))


def _is_tmem(layout: Layout, vector: int) -> bool:
    return _scaled_tile(layout, vector, (3,))


def _is_lines(layout: Layout) -> bool:
    """32 lines that go to 4 quadrants: a descriptor view of the copy's source."""
    if not _is_static_of(layout, (2, 3, 4, 5)):
        return False
    found = coalesced_modes(modes(layout)[0])
    return [size for size, _ in found] == [32, 4] and found[1][1] == 0


def _is_copied(layout: Layout) -> bool:
    """32 lanes, 16 bytes (of two MMAs of k where V = 32), 4 quadrants: the TMEM side of the copy."""
    if not _is_static_of(layout, (2, 3, 4)):
        return False
    return [size for size, _ in coalesced_modes(modes(layout)[0])] == [32, 16, 4]


# --- global memory ------------------------------------------------------------------------------------------------


def _is_in_blocks(info: TypeInfo) -> bool:
    """Whether factors lie in blocks of some rows by some of k, right or wrong: ``((32,4),?)`` and ``((16,4),?)``."""
    parts = modes(info.layout) if isinstance(info.layout, Layout) else ()
    if dtype_bits(info.dtype) != 8 or len(parts) not in (2, 3):
        return False
    for part in parts[:2]:
        inner = part.shape[0] if isinstance(part.shape, tuple) and len(part.shape) == 2 else None
        if not isinstance(inner, tuple) or len(inner) != 2 or not is_static(inner):
            return False
    return True


def _vector_of_atom(layout: Layout) -> int | None:
    """Elements to a factor, of a layout whose first two modes are rows and k in blocks of 128 x 4."""
    parts = modes(layout)
    if len(parts) not in (2, 3) or not all(isinstance(part.shape, tuple) for part in parts[:2]):
        return None
    rows, k = (leaves(part.shape) for part in parts[:2])
    strides = leaves(parts[1].stride)
    if len(rows) != 3 or len(k) != 3 or rows[:2] != (32, 4) or k[1] != 4 or strides[0] != 0:
        return None
    return k[0] if isinstance(k[0], int) else None


def compare_gmem(layout: Layout, *, expected: int | None = None) -> str | None:
    """How a layout differs from the explicit one, by canonical form, with every ``?`` alike; None if it does not.

    ``expected`` are the elements that share a factor by what the MMA says; any, if it says nothing.

    Raises:
        LayoutError: the distance of its tiles of rows is a ``?`` that need not be whole blocks.
    """
    vector = _vector_of_atom(layout)
    if vector is None:
        return f"{layout} is not made of blocks of 128 rows by 4 factors"
    if expected is not None and vector != expected:
        return f"{layout} has {vector} elements to a factor, and the MMA {expected}"
    parts = modes(layout)
    rest_m, rest_k = leaves(parts[0].shape)[2], leaves(parts[1].shape)[2]
    own = leaves(parts[0].stride)[2]
    if isinstance(own, Dynamic) and own.div % BLOCK and rest_m != 1:
        raise LayoutError(f"{layout}: tiles of rows are {own} bytes apart, which need not be whole blocks of {BLOCK}")
    # A '?' stride is taken for 512 R, as the claim's precondition says; that of a single tile does not matter.
    row_tile = own if isinstance(own, Dynamic) or rest_m == 1 else _times(512, rest_k)
    if row_tile is None:
        return f"{layout}: tiles of rows are always {own} bytes apart, whatever the number of tiles of k is"
    wanted = Layout(
        (((32, 4), rest_m), ((vector, 4), rest_k)),
        (((16, 4), row_tile), ((0, 1), 512)),
    )
    mine = Layout(tuple(part.shape for part in parts[:2]), tuple(part.stride for part in parts[:2]))
    if canonical(mine) != canonical(wanted):
        return f"{canonical(mine)} is not {canonical(wanted)}"
    return None


def _times(count: int, leaf: Leaf) -> int | None:
    return count * leaf if isinstance(leaf, int) else None


def gmem_claim(layouts: Sequence[tuple[str, Layout]], *, topic: str, vector: int | None = None) -> Claim:
    """The claim that scale factors in global memory are laid out as cuBLAS has them.

    ``vector`` are the elements to a factor; None where layouts with 16 and with 32 stand side by side.
    """

    def look() -> Look:
        for at, (name, layout) in enumerate(layouts, 1):
            wrong = compare_gmem(layout, expected=vector)
            if wrong is not None:
                return f"{name}: {wrong}", at
        return None, len(layouts)

    def tampered() -> Look:
        name, layout = layouts[0]
        shape, _, stride = str(layout).partition(":")
        found = parse_plain_layout(f"{shape}:{stride.replace('(16,4)', '(4,128)', 1)}")
        return (f"{name}: {wrong}" if (wrong := compare_gmem(found)) else None), 1

    names = ", ".join(name for name, _ in layouts)
    return Claim(
        name=f"{topic}.gmem",
        words=f"In global memory the scale factors ({names}) have the explicit 128x4 layout, of which "
        "scale-factors.cublas-16 and -32 prove that it is cuBLAS's.",
        formulas=("canonical form = that of (((32,4),rest_m),((V,4),R)):(((16,4),512 R),((0,1),512))",),
        method=Method.CANONICAL,
        check=Cases(look, "layouts"),
        preconditions=("a run-time '?' of a size is ceil(m / 128) or R, and '?{div=512}' is 512 R",),
        controls=(Control("the strides of a tile's rows are (4,128)", Cases(tampered, "layouts")),),
    )


# --- the claims of one kernel -------------------------------------------------------------------------------------


def claims_of(found: Found, *, topic: str = "scale-factors.kernel") -> tuple[Claim, ...]:
    """What is claimed of a traced kernel."""
    claims: list[Claim] = []
    if found.gmem:
        vectors = {operand.vector for operand in found.operands}
        claims.append(gmem_claim(found.gmem, topic=topic, vector=max(vectors) if len(vectors) == 1 else None))
    if found.operands:
        named = tuple(f"{operand.name} is {', '.join(operand.names)}" for operand in found.operands)
        padded = tuple(_padding(operand) for operand in found.operands if operand.rows % LANES)
        followed = {load.operand.name for load in found.loads} >= {operand.name for operand in found.operands}
        given = (*named, *padded, *(() if followed else (NOT_FOLLOWED,)))
        claims += claims_for(found.operands, topic=topic, preconditions=given)
        if found.loads:
            claims.append(load_claim(found.loads, topic=topic, preconditions=padded))
    return tuple(claims)


HALF_ROWS = (
    "an MMA of M = 128 over a pair of CTAs: each has 64 rows of A, and reads the factors of B's lower N / 2 in lanes "
    "0-63 and of the upper in lanes 64-127; only MMAs with 128 rows a CTA are followed"
)
NOT_FOLLOWED = (
    "shared memory is filled as its layout says: the load from global memory is not followed here (the simulator runs "
    "it)"
)


def _padding(operand: Operand) -> str:
    laid = -(-operand.rows // LANES) * LANES
    return (
        f"an MMA reads {operand.name} from its first row on: {operand.rows} of the {laid} rows that are laid out; one "
        "that starts at another row, as CUTLASS's kernels do in every other tile of such a width, is not followed"
    )


# --- the layouts that the DSL's helpers build ---------------------------------------------------------------------

_PROBE = re.compile(r"\.tile_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_v(?P<vector>\d+)\[(?P<part>[0-3])\]$")


def helper_pairs(records: Sequence[Record]) -> Iterator[tuple[str, str, Layout]]:
    """(name, explicit text, traced layout) of the layouts of ``toolchain.scale_probe``."""
    for record in records:
        said, info = _PROBE.search(record.name), _info(record)
        if said is None or info is None or not isinstance(info.layout, Layout):
            continue
        n, k, vector, part = (int(said[name]) for name in ("n", "k", "vector", "part"))
        rows = (128, n)[part % 2]
        if part < 2:
            stages = domain_size(modes(info.layout)[-1])
            yield record.name, explicit_smem(rows=rows, tile_k=k, vector=vector, stages=stages), info.layout
        else:
            yield record.name, explicit_tmem(rows=rows, tile_k=k, vector=vector), info.layout


def helper_claim(records: Sequence[Record], *, dsl: str) -> Claim:
    """The claim that the installed DSL's helpers build the explicit layouts."""
    pairs = list(helper_pairs(records))

    def look(*, tampered: bool = False) -> Look:
        for at, (name, text, traced) in enumerate(pairs, 1):
            wanted = parse_layout(text.replace("(0,1)", "(1,0)", 1) if tampered else text)
            if canonical(wanted) != canonical(traced):
                return f"{name}: {canonical(traced)}, and the explicit layout is {canonical(wanted)}", at
        return None, len(pairs)

    return Claim(
        name="scale-factors.helpers",
        words=f"What CuTe DSL {dsl} builds with make_smem_layout_sfa/sfb and make_tmem_layout_sfa/sfb for tiles of 64 "
        "to 256 columns, with one and two CTAs, V = 16 and 32, are the explicit layouts, of which scale-factors.smem, "
        "-tmem and -copy prove what the MMA reads.",
        formulas=("canonical(helper) = canonical(explicit)",),
        method=Method.CANONICAL,
        check=Cases(look, "layouts"),
        preconditions=(f"nvidia-cutlass-dsl {dsl}, traced",),
        controls=(
            Control(
                "the factors of k exchanged with the elements that share one",
                Cases(lambda: look(tampered=True), "layouts"),
            ),
        ),
    )

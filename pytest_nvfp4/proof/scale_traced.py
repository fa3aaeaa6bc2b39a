"""Scale factors of a traced kernel: find them among its named layouts and state the claims on them.

Layouts are recognised by type, not by a kernel's names: one-byte floats, a mode of stride 0 that shares a factor,
and the address space. Only the operand, A or B, is taken from the name (``sfa``, ``sfb``). A layout that a kernel does
not bind to a name cannot be found; the claim on it is then reported as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.canonical import canonical, coalesced_modes
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_layout, parse_plain_layout
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.offsets import domain_size
from pytest_nvfp4.layout.tree import Dynamic, Leaf, is_static, leaves
from pytest_nvfp4.proof.scale_loads import ScaleLoad, find_load, load_claim
from pytest_nvfp4.proof.scale_on_chip import claims_for
from pytest_nvfp4.proof.scale_operand import BLOCK, LANES, MMA_K, ScaleOperand, explicit_smem, explicit_tmem
from pytest_nvfp4.proof.statement import CaseResult, Claim, Method, Mistake, claim_by_cases, first_failure

_MMA = re.compile(r"mma_bs<(\d+)x(\d+)x(\d+), num_cta = ([12])\b.*\bvec_size = (\d+)")


Known = Sequence["tuple[Record, TypeInfo]"]


@dataclass(frozen=True, slots=True)
class TracedScales:
    """Scale factors found among a kernel's layouts.

    Attributes:
        operands: Scale factors with layouts of both shared memory and TMEM.
        gmem: Layouts of scale factors in global memory, by name.
        missing: One sentence for each layout that was not found.
        loads: TMA loads into shared memory, of the operands for which they were found.
    """

    operands: tuple[ScaleOperand, ...]
    gmem: tuple[tuple[str, Layout], ...]
    missing: tuple[str, ...]
    loads: tuple[ScaleLoad, ...] = ()


@dataclass(frozen=True, slots=True)
class _Mma:
    rows_m: int
    rows_n: int
    k: int
    vector: int
    ctas: int


def find_scale_factors(records: Sequence[Record]) -> TracedScales:
    """Find the scale factors among a kernel's named layouts; unreadable types are skipped."""
    known = [(record, info) for record in records if (info := _info(record)) is not None]
    named = [(record.name.lower(), mma) for record, _ in known if (mma := _mma(record.raw)) is not None]
    # CUTLASS's kernels have a second tiled MMA that only partitions SFB and issues no instruction.
    own = [(name, mma) for name, mma in named if "sfb" not in name] or named
    # All tcgen05 instructions of a kernel have one .cta_group (PTX ISA), so beside a 2-CTA MMA one of 1 CTA only
    # partitions.
    pairs = [mma for _, mma in own if mma.ctas == 2]
    mmas = sorted(set(pairs or (mma for _, mma in own)), key=repr)
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
        wrong_k = f"an MMA of K = {mmas[0].k}; only K = {MMA_K} (4-bit operands) is supported"
        return TracedScales((), gmem, (*unseen, wrong_k))
    if any(mma.rows_m != LANES for mma in mmas):
        return TracedScales((), gmem, (*unseen, HALF_ROWS))
    if len(mmas) != 1:
        many = "no block-scaled MMA is bound to a name" if not mmas else f"there are {len(mmas)} block-scaled MMAs"
        return TracedScales((), gmem, (*unseen, f"{many}; exactly one is needed to tell which layouts belong together"))
    operands: list[ScaleOperand] = []
    missing = list(unseen)
    for letter in "ab":
        operand = _operand(known, mmas[0], letter)
        if isinstance(operand, str):
            missing.append(operand)
            continue
        operands.append(operand)
        if operand.source is None or operand.target is None:
            side = "source descriptors" if operand.source is None else "TMEM side"
            missing.append(f"{operand.name}: no name with 'sf{letter}' in it is bound to the {side} of its TMEM copy")
    loads = [find_load(operand, _named(known, operand.name)) for operand in operands]
    missing += [message for message in loads if isinstance(message, str)]
    if any(load is not None for load in loads):
        missing += [
            f"{operand.name}: its load from global memory is not bound to names, and the other operand's is"
            for operand, load in zip(operands, loads, strict=True)
            if load is None
        ]
    seen = tuple(load for load in loads if isinstance(load, ScaleLoad))
    return TracedScales(tuple(operands), gmem, tuple(missing), seen)


def _named(known: Known, name: str) -> list[tuple[str, TypeInfo]]:
    """Return the types whose names contain the operand's."""
    return [(record.name, info) for record, info in known if name.lower() in record.name.lower()]


def _unseen(names: Sequence[str]) -> tuple[str, ...]:
    """Return what is missing in global memory; names such as ``operands[2]`` may identify neither operand."""
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
    match = _MMA.search(raw)
    if match is None:
        return None
    m, n, k, ctas, vector = map(int, match.groups())
    return _Mma(m // ctas, n, k, vector, ctas)


def _operand(known: Known, mma: _Mma, letter: str) -> ScaleOperand | str:
    """Return the scale factors of A or B, or a message on what is missing."""
    name = f"SF{letter.upper()}"
    own = [
        (record, info, info.layout)
        for record, info in known
        if isinstance(info.layout, Layout) and f"sf{letter}" in record.name.lower()
    ]
    smem = [(r.name, layout) for r, info, layout in own if info.space == "smem" and _is_smem(layout, mma.vector)]
    tmem = [(r.name, layout) for r, info, layout in own if info.space == "tmem" and _is_tmem(layout, mma.vector)]
    for where, seen in (("shared memory", smem), ("TMEM", tmem)):
        if not seen:
            return f"{name}: no tensor of its factors in {where} is bound to a name with 'sf{letter}' in it"
        if len({str(canonical(layout)) for _, layout in seen}) > 1:
            both = " and ".join(each for each, _ in seen)
            return f"{name}: {both} are different layouts in {where}; which of them the MMA uses is not known"
    # Of several views of one tensor, take the whole tensor: the slice of a stage has fewer indices.
    lines = [(r.name, layout) for r, info, layout in own if info.family == "smem_desc_view" and _is_lines(layout)]
    copied = [(r.name, layout) for r, info, layout in own if info.space == "tmem" and _is_copied(layout)]
    source, target = (max(seen, key=lambda view: domain_size(view[1]), default=None) for seen in (lines, copied))
    names = [smem[0][0], tmem[0][0], *(view[0] for view in (source, target) if view)]
    return ScaleOperand(
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
    """Whether the layout is ``((rows, (V, 64 / V)), 1, KB..)`` with stride 0 for the V elements that share a factor."""
    if not _is_static_of(layout, ranks) or len(modes(modes(layout)[0])) != 2:
        return False
    k_mode = modes(modes(layout)[0])[1]
    return domain_size(k_mode) == MMA_K and (leaves(k_mode.shape)[0], leaves(k_mode.stride)[0]) == (vector, 0)


def _is_smem(layout: Layout, vector: int) -> bool:
    return _scaled_tile(layout, vector, (3, 4))


def _is_tmem(layout: Layout, vector: int) -> bool:
    return _scaled_tile(layout, vector, (3,))


def _is_lines(layout: Layout) -> bool:
    """Return whether this is a descriptor view of the copy's source: 32 lines that go to 4 quadrants."""
    if not _is_static_of(layout, (2, 3, 4, 5)):
        return False
    merged = coalesced_modes(modes(layout)[0])
    return [size for size, _ in merged] == [32, 4] and merged[1][1] == 0


def _is_copied(layout: Layout) -> bool:
    """Whether this is the TMEM side of the copy: 32 lanes, 16 bytes (two MMAs of k where V = 32), 4 quadrants."""
    if not _is_static_of(layout, (2, 3, 4)):
        return False
    return [size for size, _ in coalesced_modes(modes(layout)[0])] == [32, 16, 4]


# --- global memory ------------------------------------------------------------------------------------------------


def _is_in_blocks(info: TypeInfo) -> bool:
    """Return whether factors lie in blocks of rows by k of any order, as ``((32,4),?)`` and ``((16,4),?)``."""
    parts = modes(info.layout) if isinstance(info.layout, Layout) else ()
    if dtype_bits(info.dtype) != 8 or len(parts) not in (2, 3):
        return False
    for part in parts[:2]:
        inner = part.shape[0] if isinstance(part.shape, tuple) and len(part.shape) == 2 else None
        if not isinstance(inner, tuple) or len(inner) != 2 or not is_static(inner):
            return False
    return True


def _vector_of_atom(layout: Layout) -> int | None:
    """Return the elements to a factor of a layout whose first two modes are rows and k in blocks of 128 x 4."""
    parts = modes(layout)
    if len(parts) not in (2, 3) or not all(isinstance(part.shape, tuple) for part in parts[:2]):
        return None
    rows, k = (leaves(part.shape) for part in parts[:2])
    strides = leaves(parts[1].stride)
    if len(rows) != 3 or len(k) != 3 or rows[:2] != (32, 4) or k[1] != 4 or strides[0] != 0:
        return None
    return k[0] if isinstance(k[0], int) else None


def compare_gmem(layout: Layout, *, expected: int | None = None) -> str | None:
    """Return how a layout's canonical form differs from the explicit one with equal ``?``, or None.

    ``expected`` is the number of elements that share a factor in the MMA; None accepts 16 and 32.

    Raises:
        LayoutError: the distance of its tiles of rows is a ``?`` that may not be whole blocks.
    """
    vector = _vector_of_atom(layout)
    if vector is None:
        return f"{layout} is not made of blocks of 128 rows by 4 factors"
    if expected is not None and vector != expected:
        return f"{layout} has {vector} elements to a factor, but the MMA has {expected}"
    parts = modes(layout)
    rest_m, rest_k = leaves(parts[0].shape)[2], leaves(parts[1].shape)[2]
    own = leaves(parts[0].stride)[2]
    if isinstance(own, Dynamic) and own.div % BLOCK and rest_m != 1:
        raise LayoutError(f"{layout}: tiles of rows are {own} bytes apart, which may not be whole blocks of {BLOCK}")
    # The claim's precondition equates a '?' stride with 512 R; the stride of a single tile does not matter.
    row_tile = own if isinstance(own, Dynamic) or rest_m == 1 else _times(512, rest_k)
    if row_tile is None:
        return f"{layout}: tiles of rows are always {own} bytes apart, whatever the number of tiles of k"
    wanted = Layout((((32, 4), rest_m), ((vector, 4), rest_k)), (((16, 4), row_tile), ((0, 1), 512)))
    actual = Layout(tuple(part.shape for part in parts[:2]), tuple(part.stride for part in parts[:2]))
    return None if canonical(actual) == canonical(wanted) else f"{canonical(actual)} is not {canonical(wanted)}"


def _times(count: int, leaf: Leaf) -> int | None:
    return count * leaf if isinstance(leaf, int) else None


def gmem_claim(layouts: Sequence[tuple[str, Layout]], *, topic: str, vector: int | None = None) -> Claim:
    """Return the claim that scale factors in global memory have cuBLAS's layout.

    ``vector`` is the number of elements to a factor; None where layouts with 16 and with 32 are mixed.
    """

    def look(*, row_major: bool = False) -> CaseResult:
        checked = [(name, _row_major(layout)) for name, layout in layouts[:1]] if row_major else layouts
        return first_failure(
            CaseResult(wrong and f"{name}: {wrong}", 1)
            for name, layout in checked
            for wrong in [compare_gmem(layout, expected=None if row_major else vector)]
        )

    names = ", ".join(name for name, _ in layouts)
    return claim_by_cases(
        f"{topic}.gmem",
        f"In global memory the scale factors ({names}) have the explicit 128x4 layout, which scale-factors.cublas-16 "
        "and -32 prove to be cuBLAS's.",
        look,
        "layouts",
        formulas=("canonical form = that of (((32,4),rest_m),((V,4),R)):(((16,4),512 R),((0,1),512))",),
        given=("a run-time '?' of a size is ceil(m / 128) or R, and '?{div=512}' is 512 R",),
        controls=(Mistake("the strides of a tile's rows are (4,128)", {"row_major": True}),),
        method=Method.CANONICAL,
    )


def _row_major(layout: Layout) -> Layout:
    shape, _, stride = str(layout).partition(":")
    return parse_plain_layout(f"{shape}:{stride.replace('(16,4)', '(4,128)', 1)}")


# --- the claims of one kernel -------------------------------------------------------------------------------------


def claims_of(scales: TracedScales, *, topic: str = "scale-factors.kernel") -> tuple[Claim, ...]:
    """Return the claims on a traced kernel."""
    claims: list[Claim] = []
    if scales.gmem:
        vectors = {operand.vector for operand in scales.operands}
        claims.append(gmem_claim(scales.gmem, topic=topic, vector=max(vectors) if len(vectors) == 1 else None))
    if scales.operands:
        named = tuple(f"{operand.name} is {', '.join(operand.names)}" for operand in scales.operands)
        padded = tuple(_padding(operand) for operand in scales.operands if operand.rows % LANES)
        followed = {load.operand.name for load in scales.loads} >= {operand.name for operand in scales.operands}
        given = (*named, *padded, *(() if followed else (NOT_FOLLOWED,)))
        claims += claims_for(scales.operands, topic=topic, preconditions=given)
        if scales.loads:
            claims.append(load_claim(scales.loads, topic=topic, preconditions=padded))
    return tuple(claims)


HALF_ROWS = (
    "an MMA of M = 128 over a pair of CTAs: each has 64 rows of A and reads the factors of B's lower N / 2 in lanes "
    "0-63 and of the upper half in lanes 64-127; only MMAs with 128 rows a CTA are supported"
)
NOT_FOLLOWED = (
    "shared memory is filled according to its layout: the load from global memory is not followed here (the simulator "
    "runs it)"
)


def _padding(operand: ScaleOperand) -> str:
    laid = -(-operand.rows // LANES) * LANES
    return (
        f"an MMA reads {operand.name} from its first row on: {operand.rows} of the {laid} rows that are laid out; one "
        "that starts at another row, as CUTLASS's kernels do in every other tile of such a width, is not followed"
    )


# --- the layouts that the DSL's helpers build ---------------------------------------------------------------------

_PROBE = re.compile(r"\.tile_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_v(?P<vector>\d+)\[(?P<part>[0-3])\]$")


def helper_pairs(records: Sequence[Record]) -> Iterator[tuple[str, str, Layout]]:
    """Iterate over (name, explicit text, traced layout) of the layouts of ``toolchain.scale_probe``."""
    for record in records:
        match, info = _PROBE.search(record.name), _info(record)
        if match is None or info is None or not isinstance(info.layout, Layout):
            continue
        n, k, vector, part = (int(match[name]) for name in ("n", "k", "vector", "part"))
        rows = (128, n)[part % 2]
        if part < 2:
            stages = domain_size(modes(info.layout)[-1])
            yield record.name, explicit_smem(rows=rows, tile_k=k, vector=vector, stages=stages), info.layout
        else:
            yield record.name, explicit_tmem(rows=rows, tile_k=k, vector=vector), info.layout


def helper_claim(records: Sequence[Record], *, dsl: str) -> Claim:
    """Return the claim that the installed DSL's helpers build the explicit layouts."""
    pairs = list(helper_pairs(records))

    def look(*, exchanged: bool = False) -> CaseResult:
        for at, (name, text, traced) in enumerate(pairs, 1):
            explicit = canonical(parse_layout(text.replace("(0,1)", "(1,0)", 1) if exchanged else text))
            if explicit != canonical(traced):
                return CaseResult(f"{name}: {canonical(traced)}, and the explicit layout is {explicit}", at)
        return CaseResult(None, len(pairs))

    return claim_by_cases(
        "scale-factors.helpers",
        f"What CuTe DSL {dsl} builds with make_smem_layout_sfa/sfb and make_tmem_layout_sfa/sfb for tiles of 64 to 256 "
        "columns, with one and two CTAs, V = 16 and 32, are the explicit layouts, for which scale-factors.smem, -tmem "
        "and -copy prove what the MMA reads.",
        look,
        "layouts",
        formulas=("canonical(helper) = canonical(explicit)",),
        given=(f"nvidia-cutlass-dsl {dsl}, traced",),
        controls=(Mistake("the factors of k exchanged with the elements that share one", {"exchanged": True}),),
        method=Method.CANONICAL,
    )

"""TMA's copies of scale factors from global to shared memory: what it brings is where shared memory's layout has it.

``cpasync.tma_partition`` gives two tensors of equal size: index i of the one is a coordinate of the TMA tensor in
global memory, (16-bit word of a block of 128 rows by 4 factors, tile of k, tile of rows), and index i of the other is
where its byte goes in shared memory. The coordinate tensor that the MMA's partition has beside it says which coordinate
is the factor of a (row, k). So a factor's byte is followed by way of its coordinate, and compared with the layout that
`pytest_nvfp4.proof.scale_places` starts from.

A coordinate tensor begins at a tile that is known at run time only, so all coordinates are relative to it. Which CTA of
a cluster loads and multicasts which part is not followed: the parts together are the whole that is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.canonical import canonical
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import TypeInfo
from pytest_nvfp4.layout.notation import ComposedLayout, Layout
from pytest_nvfp4.layout.offsets import domain_size, offset_array
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, is_static, leaves, unflatten
from pytest_nvfp4.proof.scale_operand import MMA_K, Operand
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Look, Method

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MODES = 4
"""Modes of a TMA tensor of scale factors: a word of a block, tiles of k, tiles of rows, the batch."""


@dataclass(frozen=True, slots=True)
class Load:
    """How TMA fills the scale factors of one operand.

    Attributes:
        operand: Whose they are.
        source: Index -> coordinate, the elements that share a factor left out.
        target: Index -> byte of one stage of shared memory, likewise.
        factors: ((row, k), 0, MMA of k) -> coordinate.
        names: Which variables these are.
        stages: Stage -> byte of the target; None where it has one stage.
        tiles: Strides from tile to tile, of the source and of the factors.
        begins: Where the source's coordinates begin and where the factors'; a run-time ``?`` is a part of a tile.
    """

    operand: Operand
    source: Layout
    target: Layout
    factors: Layout
    names: tuple[str, ...]
    stages: Layout | None = None
    tiles: tuple[tuple[Leaf, ...], tuple[Leaf, ...]] = ((), ())
    begins: tuple[tuple[Leaf, ...], tuple[Leaf, ...]] = ((), ())


def find_load(operand: Operand, mine: Sequence[tuple[str, TypeInfo]]) -> Load | str | None:
    """The load of an operand among the named types that are its own.

    None where it is not seen whole, and a sentence where there are several and they differ.
    """
    shared = [
        (name, whole)
        for name, info in mine
        if info.space == "smem" and info.family == "memref" and isinstance(info.layout, Layout)
        if len(modes(info.layout)) == 2 and (whole := _without_sharing(modes(info.layout)[0])) is not None
    ]
    coordinates = [(name, layout) for name, info in mine if (layout := _coordinates(info)) is not None]
    sources = [
        (name, whole)
        for name, layout in coordinates
        if (whole := _without_sharing(modes(layout)[0])) is not None and len(modes(modes(layout)[0])) <= 2
    ]
    size = [domain_size(part) for part in modes(operand.smem)[:3]]
    factors = [
        (name, Layout(tuple(part.shape for part in parts[:3]), tuple(part.stride for part in parts[:3])))
        for name, layout in coordinates
        if len(parts := modes(layout)) > 3 and _is_tile(parts[:3], size)
    ]
    sizes = {domain_size(target) for _, target in shared} & {domain_size(source) for _, source in sources}
    if not sizes or not factors:
        return None
    most = max(sizes)
    chosen = [[one for one in candidates if domain_size(one[1]) == most] for candidates in (sources, shared)] + [
        factors
    ]
    for candidates in chosen:
        if len({str(canonical(layout)) for _, layout in candidates}) > 1:
            both = " and ".join(name for name, _ in candidates)
            return f"{operand.name}: {both} are different layouts; which of them its load uses is not known"
    (source_name, source), (target_name, target), (factors_name, found) = (candidates[0] for candidates in chosen)
    infos = dict(mine)
    wholes = dict(coordinates)
    shared_layout = infos[target_name].layout
    return Load(
        operand,
        source,
        target,
        found,
        (source_name, target_name, factors_name),
        modes(shared_layout)[1] if isinstance(shared_layout, Layout) else None,
        (_steps(wholes[source_name], 1), _steps(wholes[factors_name], 3)),
        (_begin(infos[source_name]), _begin(infos[factors_name])),
    )


def _steps(layout: Layout, first: int) -> tuple[Leaf, ...]:
    """The strides of the modes from one on that are not 1 long."""
    pairs = [
        pair for part in modes(layout)[first:] for pair in zip(leaves(part.shape), leaves(part.stride), strict=True)
    ]
    return tuple(stride for size, stride in pairs if size != 1)


def _begin(info: TypeInfo) -> tuple[Leaf, ...]:
    """The coordinate that a coordinate tensor begins at."""
    return leaves(info.layout.offset) if isinstance(info.layout, ComposedLayout) else ()


def _coordinates(info: TypeInfo) -> Layout | None:
    """The layout of a coordinate tensor, without where it begins."""
    layout = info.layout.outer if isinstance(info.layout, ComposedLayout) else info.layout
    if info.family != "coord_tensor" or not isinstance(layout, Layout) or not isinstance(layout.shape, tuple):
        return None
    return layout


def _is_tile(parts: Sequence[Layout], size: Sequence[int]) -> bool:
    if not all(is_static(part.shape) and is_static(part.stride) for part in parts):
        return False
    return [domain_size(part) for part in parts] == list(size) and len(modes(parts[0])) == 2


def _without_sharing(layout: Layout) -> Layout | None:
    """A mode without a last leaf of stride 0, of the elements that share a factor; None where one lies elsewhere."""
    pairs = [pair for pair in zip(leaves(layout.shape), leaves(layout.stride), strict=True) if pair[0] != 1]
    while pairs and pairs[-1][1] == 0:
        pairs.pop()
    if not pairs or not all(isinstance(size, int) for size, _ in pairs):
        return None
    if any(stride == 0 or not isinstance(stride, int | ScaledBasis) for _, stride in pairs):
        return None
    return Layout(tuple(size for size, _ in pairs), tuple(stride for _, stride in pairs))


# --- what is looked at --------------------------------------------------------------------------------------------


def _axes(layout: Layout) -> NDArray[np.int64]:
    """The coordinates of every index, ``[mode][index]``, in halves: words of 16 bits have halves for bytes.

    Raises:
        LayoutError: a stride that is no whole number of halves of one mode.
    """
    import numpy as np

    found = []
    for mode in range(_MODES):
        steps = [_step(layout, stride, mode) for stride in leaves(layout.stride)]
        found.append(offset_array(Layout(layout.shape, unflatten(steps, layout.shape))))
    return np.stack(found)


def _step(layout: Layout, stride: Leaf, mode: int) -> int:
    """What a stride adds to one mode of the coordinate, in halves."""
    if stride == 0:
        return 0
    if not isinstance(stride, ScaledBasis) or len(stride.modes) != 1 or stride.modes[0] >= _MODES:
        raise LayoutError(f"{layout}: its values are no coordinates of {_MODES} modes")
    if isinstance(stride.value, Dynamic) or (2 * stride.value) % 1:
        raise LayoutError(f"{layout}: the step {stride} is no whole number of bytes of 16-bit words")
    return int(2 * stride.value) if stride.modes[0] == mode else 0


def _misplaced(load: Load) -> str | None:
    """Tiles or stages that are other distances apart for TMA than for the MMA, or begin elsewhere; None if none do."""
    operand = load.operand
    parts = modes(operand.smem)
    stages = (load.stages, parts[3]) if load.stages is not None and len(parts) == 4 else ()
    if len({tuple(offset_array(each).tolist()) for each in stages}) > 1:
        return f"{operand.name}: TMA's stages are {load.stages}, and shared memory's {parts[3]}"
    # A slice has fewer modes than what it was taken from, and those in the same order.
    left = iter(load.tiles[1])
    if not all(step in left for step in load.tiles[0]):
        mine, theirs = (", ".join(map(str, steps)) for steps in load.tiles)
        return f"{operand.name}: TMA steps from tile to tile by {mine}, and the tiles are {theirs} apart"
    ktiles = domain_size(parts[2]) * MMA_K // (4 * operand.vector)
    for step in load.tiles[0]:
        if isinstance(step, ScaledBasis) and step.modes == (1,) and step.value != ktiles:
            return f"{operand.name}: TMA steps along k by {step}, and a tile has {ktiles} blocks of k"
    words = [begin[0] for begin in load.begins if begin and isinstance(begin[0], int)]
    if len(set(words)) > 1:
        return f"{operand.name}: TMA begins at word {words[0]} of a block, and the tile at word {words[1]}"
    return None


def look_at_load(load: Load, *, late: int = 0) -> Look:
    """Whether TMA brings the byte of every factor to where shared memory has it; with ``late``, wrongly, so far on."""
    import numpy as np

    operand = load.operand
    if (misplaced := _misplaced(load)) is not None:
        return misplaced, 1
    source, bytes_ = _axes(load.source), offset_array(load.target) + late
    factors = _axes(load.factors)
    # A number for each coordinate that occurs.
    both = np.unique(np.concatenate((source, factors), axis=1), axis=1, return_inverse=True)[1].ravel()
    keys, sought = both[: source.shape[1]], both[source.shape[1] :]
    order = np.argsort(keys, kind="stable")
    keys, bytes_ = keys[order], bytes_[order]
    twice = np.flatnonzero((keys[1:] == keys[:-1]) & (bytes_[1:] != bytes_[:-1]))
    if len(twice):
        at = int(twice[0])
        where = _shown(source[:, order[at]])
        return f"{operand.name}: TMA brings coordinate {where} to bytes {bytes_[at]} and {bytes_[at + 1]}", at + 1
    parts = modes(operand.smem)
    wanted = offset_array(Layout(tuple(part.shape for part in parts[:3]), tuple(part.stride for part in parts[:3])))
    # The first mode is ((row), (k)), and an index counts rows first.
    rows, inner = domain_size(modes(parts[0])[0]), domain_size(parts[0])
    index = np.arange(len(wanted))
    row, k, mma = index % rows, index % inner // rows, index // inner
    used = np.flatnonzero((row < operand.rows) & (k % operand.vector == 0))
    asked = sought[used]
    place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    there = keys[place] == asked
    wrong = np.flatnonzero(~there | (bytes_[place] != wanted[used]))
    if not len(wrong):
        return None, len(used)
    first = int(wrong[0])
    at = int(used[first])
    brought = f"to byte {bytes_[place[first]]}" if there[first] else "nowhere"
    return (
        f"{operand.name}, row {row[at]}, k {mma[at] * MMA_K + k[at]}: TMA brings its coordinate "
        f"{_shown(factors[:, at])} {brought}, and shared memory has it at byte {wanted[at]}"
    ), first + 1


def _shown(halves: NDArray[np.int64]) -> str:
    return f"({', '.join(str(Fraction(int(half), 2)) for half in halves)})"


PARTS = (
    "cute.copy brings index i of its source to index i of its target, and the CTAs of a cluster that share a tile load "
    "and multicast all of its parts: which loads which is not followed (the simulator runs it)"
)


def load_claim(loads: Sequence[Load], *, topic: str, preconditions: tuple[str, ...] = ()) -> Claim:
    """The claim on the loads of a kernel."""

    def look(*, late: int = 0) -> Look:
        looked = 0
        for load in loads:
            wrong, count = look_at_load(load, late=late)
            looked += count
            if wrong is not None:
                return wrong, looked
        return None, looked

    what = " and ".join(load.operand.name for load in loads)
    names = tuple(f"{load.operand.name}'s load is {', '.join(load.names)}" for load in loads)
    return Claim(
        name=f"{topic}.load",
        words=f"TMA brings the factor of every (row, k-block) of a tile of {what} to the byte of shared memory at "
        "which its layout has it.",
        formulas=("target(i) = smem(row, k) for the i with source(i) = coordinate(row, k)",),
        method=Method.EXHAUSTIVE,
        check=Cases(look, "factors"),
        preconditions=(*preconditions, *names, PARTS),
        controls=(Control("TMA writes one block of 512 bytes late", Cases(lambda: look(late=512), "factors")),),
    )

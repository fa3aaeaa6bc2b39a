"""TMA loads of scale factors, compared with the shared-memory layout of the operand.

``cpasync.tma_partition`` returns two tensors of equal size. Index i of the first is a coordinate of the TMA tensor in
global memory: (16-bit word of a block of 128 rows by 4 factors, tile of k, tile of rows). Index i of the second is the
byte of shared memory that it goes to. The coordinate tensor of the MMA's partition maps (row, k) to the coordinate of
its factor. So the coordinate leads from a factor to its byte, which must be that of the layout in
`pytest_nvfp4.proof.scale_places`.

A coordinate tensor begins at a tile known only at run time, so all coordinates are relative to it. Which CTA of a
cluster loads and multicasts which part is not followed: the check covers the union of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.canonical import canonical
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.irtypes import TypeInfo
from pytest_nvfp4.layout.notation import ComposedLayout, Layout
from pytest_nvfp4.layout.offsets import domain_size, offset_array
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, is_static, leaves, unflatten
from pytest_nvfp4.proof.scale_operand import MMA_K, ScaleOperand
from pytest_nvfp4.proof.statement import CaseResult, Claim, Mistake, claim_by_cases, first_failure

_MODES = 4
"""Modes of a TMA tensor of scale factors: a word of a block, tiles of k, tiles of rows, the batch."""


@dataclass(frozen=True, slots=True)
class ScaleLoad:
    """TMA load of the scale factors of one operand.

    Attributes:
        operand: The operand.
        source: Index -> coordinate, without the elements that share a factor.
        target: Index -> byte of one stage of shared memory, likewise.
        factors: ((row, k), 0, MMA of k) -> coordinate.
        names: The kernel's variables that hold these layouts.
        stages: Stage -> byte of the target; None where it has one stage.
        tiles: Strides from tile to tile, of the source and of the factors.
        begins: First coordinate of the source and of the factors; a run-time ``?`` is a part of a tile.
    """

    operand: ScaleOperand
    source: Layout
    target: Layout
    factors: Layout
    names: tuple[str, ...]
    stages: Layout | None = None
    tiles: tuple[tuple[Leaf, ...], tuple[Leaf, ...]] = ((), ())
    begins: tuple[tuple[Leaf, ...], tuple[Leaf, ...]] = ((), ())


def find_load(operand: ScaleOperand, types: Sequence[tuple[str, TypeInfo]]) -> ScaleLoad | str | None:
    """Find the load of an operand among its named types.

    Returns:
        None if a part is missing, and a message if candidates for one part differ.
    """
    shared = [
        (name, whole)
        for name, info in types
        if info.space == "smem" and info.family == "memref" and isinstance(info.layout, Layout)
        if len(modes(info.layout)) == 2 and (whole := _without_sharing(modes(info.layout)[0])) is not None
    ]
    coordinates = [(name, layout) for name, info in types if (layout := _coordinates(info)) is not None]
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
    largest = [[each for each in candidates if domain_size(each[1]) == most] for candidates in (sources, shared)]
    chosen = [*largest, factors]
    for candidates in chosen:
        if len({str(canonical(layout)) for _, layout in candidates}) > 1:
            both = " and ".join(name for name, _ in candidates)
            return f"{operand.name}: {both} are different layouts; which of them its load uses is not known"
    (source_name, source), (target_name, target), (factors_name, factor_tile) = (candidates[0] for candidates in chosen)
    infos = dict(types)
    wholes = dict(coordinates)
    shared_layout = infos[target_name].layout
    return ScaleLoad(
        operand,
        source,
        target,
        factor_tile,
        (source_name, target_name, factors_name),
        modes(shared_layout)[1] if isinstance(shared_layout, Layout) else None,
        (_steps(wholes[source_name], 1), _steps(wholes[factors_name], 3)),
        (_begin(infos[source_name]), _begin(infos[factors_name])),
    )


def _steps(layout: Layout, first: int) -> tuple[Leaf, ...]:
    """Return the strides of the modes from ``first`` on whose size is not 1."""
    pairs = [
        pair for part in modes(layout)[first:] for pair in zip(leaves(part.shape), leaves(part.stride), strict=True)
    ]
    return tuple(stride for size, stride in pairs if size != 1)


def _begin(info: TypeInfo) -> tuple[Leaf, ...]:
    """Return the first coordinate of a coordinate tensor."""
    return leaves(info.layout.offset) if isinstance(info.layout, ComposedLayout) else ()


def _coordinates(info: TypeInfo) -> Layout | None:
    """Return the layout of a coordinate tensor without its first coordinate."""
    layout = info.layout.outer if isinstance(info.layout, ComposedLayout) else info.layout
    if info.family != "coord_tensor" or not isinstance(layout, Layout) or not isinstance(layout.shape, tuple):
        return None
    return layout


def _is_tile(parts: Sequence[Layout], size: Sequence[int]) -> bool:
    if not all(is_static(part.shape) and is_static(part.stride) for part in parts):
        return False
    return [domain_size(part) for part in parts] == list(size) and len(modes(parts[0])) == 2


def _without_sharing(layout: Layout) -> Layout | None:
    """Drop trailing leaves of stride 0 (elements that share a factor); None if a stride 0 is elsewhere."""
    pairs = [pair for pair in zip(leaves(layout.shape), leaves(layout.stride), strict=True) if pair[0] != 1]
    while pairs and pairs[-1][1] == 0:
        pairs.pop()
    if not pairs or not all(isinstance(size, int) for size, _ in pairs):
        return None
    if any(stride == 0 or not isinstance(stride, int | ScaledBasis) for _, stride in pairs):
        return None
    return Layout(tuple(size for size, _ in pairs), tuple(stride for _, stride in pairs))


# --- the check ---------------------------------------------------------------------------------------------------


def _axes(layout: Layout) -> NDArray[np.int64]:
    """Return the coordinates of every index, ``[mode][index]``, in halves: a byte is half a 16-bit word.

    Raises:
        LayoutError: a stride is not a whole number of halves of one mode.
    """
    axes = []
    for mode in range(_MODES):
        steps = [_step(layout, stride, mode) for stride in leaves(layout.stride)]
        axes.append(offset_array(Layout(layout.shape, unflatten(steps, layout.shape))))
    return np.stack(axes)


def _step(layout: Layout, stride: Leaf, mode: int) -> int:
    """Return what a stride adds to one mode of the coordinate, in halves."""
    if stride == 0:
        return 0
    if not isinstance(stride, ScaledBasis) or len(stride.modes) != 1 or stride.modes[0] >= _MODES:
        raise LayoutError(f"{layout}: its values are not coordinates of {_MODES} modes")
    if isinstance(stride.value, Dynamic) or (2 * stride.value) % 1:
        raise LayoutError(f"{layout}: the step {stride} is not a whole number of bytes of 16-bit words")
    return int(2 * stride.value) if stride.modes[0] == mode else 0


def _misplaced(load: ScaleLoad) -> str | None:
    """Return how TMA's tiles or stages differ from the MMA's in distance or start, or None."""
    operand = load.operand
    parts = modes(operand.smem)
    stages = (load.stages, parts[3]) if load.stages is not None and len(parts) == 4 else ()
    if len({tuple(offset_array(each).tolist()) for each in stages}) > 1:
        return f"{operand.name}: TMA's stages are {load.stages}, and shared memory's {parts[3]}"
    # A slice keeps the order of the modes of its tensor and drops some.
    left = iter(load.tiles[1])
    if not all(step in left for step in load.tiles[0]):
        tma, tiles = (", ".join(map(str, steps)) for steps in load.tiles)
        return f"{operand.name}: TMA steps from tile to tile by {tma}, and the tiles are {tiles} apart"
    ktiles = domain_size(parts[2]) * MMA_K // (4 * operand.vector)
    for step in load.tiles[0]:
        if isinstance(step, ScaledBasis) and step.modes == (1,) and step.value != ktiles:
            return f"{operand.name}: TMA steps along k by {step}, and a tile has {ktiles} blocks of k"
    words = [begin[0] for begin in load.begins if begin and isinstance(begin[0], int)]
    if len(set(words)) > 1:
        return f"{operand.name}: TMA begins at word {words[0]} of a block, and the tile at word {words[1]}"
    return None


def check_load(load: ScaleLoad, *, late: int = 0) -> CaseResult:
    """Check that TMA writes every factor to its byte of shared memory; with ``late``, that many bytes later."""
    operand = load.operand
    if (misplaced := _misplaced(load)) is not None:
        return CaseResult(misplaced, 1)
    source, bytes_ = _axes(load.source), offset_array(load.target) + late
    factors = _axes(load.factors)
    # Number the coordinates that occur.
    both = np.unique(np.concatenate((source, factors), axis=1), axis=1, return_inverse=True)[1].ravel()
    keys, sought = both[: source.shape[1]], both[source.shape[1] :]
    order = np.argsort(keys, kind="stable")
    keys, bytes_ = keys[order], bytes_[order]
    twice = np.flatnonzero((keys[1:] == keys[:-1]) & (bytes_[1:] != bytes_[:-1]))
    if len(twice):
        at = int(twice[0])
        where = _shown(source[:, order[at]])
        wrong = f"{operand.name}: TMA writes coordinate {where} to bytes {bytes_[at]} and {bytes_[at + 1]}"
        return CaseResult(wrong, at + 1)
    parts = modes(operand.smem)
    expected = offset_array(Layout(tuple(part.shape for part in parts[:3]), tuple(part.stride for part in parts[:3])))
    # The first mode is ((row), (k)), and an index counts rows first.
    rows, inner = domain_size(modes(parts[0])[0]), domain_size(parts[0])
    index = np.arange(len(expected))
    row, k, mma = index % rows, index % inner // rows, index // inner
    used = np.flatnonzero((row < operand.rows) & (k % operand.vector == 0))
    place = np.minimum(np.searchsorted(keys, sought[used]), len(keys) - 1)
    loaded = keys[place] == sought[used]
    differ = np.flatnonzero(~loaded | (bytes_[place] != expected[used]))
    if not len(differ):
        return CaseResult(None, len(used))
    first = int(differ[0])
    at = int(used[first])
    where = f"to byte {bytes_[place[first]]}" if loaded[first] else "nowhere"
    return CaseResult(
        f"{operand.name}, row {row[at]}, k {mma[at] * MMA_K + k[at]}: TMA writes its coordinate "
        f"{_shown(factors[:, at])} {where}, and shared memory has it at byte {expected[at]}",
        first + 1,
    )


def _shown(halves: NDArray[np.int64]) -> str:
    return f"({', '.join(str(Fraction(int(half), 2)) for half in halves)})"


PARTS = (
    "cute.copy moves index i of its source to index i of its target, and the CTAs of a cluster that share a tile load "
    "and multicast all of its parts: which loads which is not followed (the simulator runs it)"
)


def load_claim(loads: Sequence[ScaleLoad], *, topic: str, preconditions: tuple[str, ...] = ()) -> Claim:
    """Return the claim on the loads of a kernel."""
    what = " and ".join(load.operand.name for load in loads)
    names = tuple(f"{load.operand.name}'s load is {', '.join(load.names)}" for load in loads)
    return claim_by_cases(
        f"{topic}.load",
        f"TMA writes the factor of every (row, k-block) of a tile of {what} to the byte of shared memory that its "
        "layout has for it.",
        lambda *, late=0: first_failure(check_load(load, late=late) for load in loads),
        "factors",
        formulas=("target(i) = smem(row, k) for the i with source(i) = coordinate(row, k)",),
        given=(*preconditions, *names, PARTS),
        controls=(Mistake("TMA writes one block of 512 bytes late", {"late": 512}),),
    )

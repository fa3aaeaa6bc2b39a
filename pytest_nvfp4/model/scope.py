"""What may be modelled: kinds of kernels, and why a recording is outside all of them.

The replayer gives a number for any recording. It is worth something only for kinds of kernels that it was made for:
those that stage most of their operands by TMA. A call outside is refused, with what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.chained import special_between, specials
from pytest_nvfp4.model.products import products_of
from pytest_nvfp4.model.recording import Does, Program, Recording, Unit

MOST_BY_LANES = 0.75
"""Largest share of the bytes that a call reads from global memory which lanes of warps may load, rather than TMA."""

_WIDE_K = 96
_NO_ATTENTION = "the model has no measured times of attention or of chained GEMMs"


def kind_of(recordings: Sequence[Recording]) -> str:
    """Return the kind of the kernels of a call: that of its first launch that multiplies.

    It is ``dense tcgen05 GEMM``, ``grouped tcgen05 GEMM`` (of several independent products, batched ones included),
    ``tcgen05 GEMM`` if that cannot be told, ``wgmma GEMM``, ``mma GEMM``, ``copy`` or ``other``.
    """
    for recording in recordings:
        units = _units(recording)
        if units[Unit.TENSOR]:
            if units[Unit.COMMIT] or recording.arch.startswith("sm_10"):
                products = products_of(recording)
                which = "" if products is None else "dense " if products == 1 else "grouped "
                return f"{which}tcgen05 GEMM"
            return "wgmma GEMM" if recording.arch.startswith("sm_90") else "mma GEMM"
    if any(_units(recording)[Unit.TMA_LOAD] for recording in recordings):
        return "copy"
    return "other"


def refusals(recordings: Sequence[Recording]) -> list[str]:
    """Return why no time is modelled of a call; empty if it is within the kinds that are modelled."""
    found = [line for recording in recordings for line in recording.refused]
    if kind_of(recordings) == "other":
        found.append("it neither loads by TMA nor uses tensor cores: the model has no measured times of such kernels")
    found += _by_lanes(recordings)
    for recording in recordings:
        found += _chained(recording)
        found += _wide(recording)
    return list(dict.fromkeys(found))


def _units(recording: Recording) -> Counter[int]:
    counts: Counter[int] = Counter()
    for program in recording.programs:
        counts.update(program.operations["unit"].tolist())
    return counts


def _by_lanes(recordings: Sequence[Recording]) -> Iterator[str]:
    """Yield the refusal of a call that reads most of its operands by loads of lanes."""
    read: Counter[int] = Counter()
    for recording in recordings:
        clusters = Counter(cluster.program for cluster in recording.clusters)
        for number, program in enumerate(recording.programs):
            sizes = np.array([shape.bytes for shape in program.shapes], np.int64)
            for unit in (Unit.GLOBAL_LOAD, Unit.TMA_LOAD):
                chosen = program.operations["shape"][program.operations["unit"] == unit]
                read[unit] += clusters[number] * int(sizes[chosen].sum())
    lanes, whole = read[Unit.GLOBAL_LOAD], read.total()
    if lanes > MOST_BY_LANES * whole:
        yield (
            f"{100 * lanes / whole:.0f} % of the bytes that it reads from global memory are loaded by lanes "
            "(ld.global, cp.async): the model has no measured times of kernels without TMA, and models no L1 cache"
        )


def _chained(recording: Recording) -> Iterator[str]:
    """Yield the refusal of a kernel whose MMAs multiply what its warps computed with special functions, as attention
    does.

    A GEMM of mixed inputs converts operands on their way, which needs none (ex2, lg2, rcp, sin ...).
    """
    for program in recording.programs:
        tensor = program.operations["unit"] == Unit.TENSOR
        own = np.array([shape.a_tmem for shape in program.shapes], bool)[program.operations["shape"]] & tensor
        if own.any() and specials(program) >= np.count_nonzero(own):
            yield (
                f"MMAs{_at(recording, program, own)} take A from tensor memory or registers, where warps computed it "
                f"with special functions (ex2 ...): {_NO_ATTENTION}"
            )
            return
        if (site := special_between(program)) is not None:
            source = recording.sites[site].source or recording.sites[site].opcode if site >= 0 else ""
            yield (
                f"MMAs wait for warps that apply special functions (ex2 ...) to results of earlier MMAs"
                f"{f', which they read at {source}' * bool(source)}, and store nothing meanwhile: {_NO_ATTENTION}"
            )
            return


def _wide(recording: Recording) -> Iterator[str]:
    """Yield the refusal of MMAs of K = 96, of which no table has a rate."""
    for program in recording.programs:
        tensor = program.operations["unit"] == Unit.TENSOR
        wide = np.array([shape.k == _WIDE_K for shape in program.shapes], bool)[program.operations["shape"]] & tensor
        if wide.any():
            yield f"MMAs{_at(recording, program, wide)} multiply 96 elements of K: the model has no rate of them"
            return


def _at(recording: Recording, program: Program, chosen: NDArray[np.bool_]) -> str:
    """Return the place of the first event that issues a chosen operation."""
    for warp in program.warps:
        issues = warp.events[warp.events["does"] == Does.ISSUE]
        for event in issues[chosen[issues["item"]]][:1]:
            site = recording.sites[event["site"]]
            return f" at {site.source or site.opcode}"
    return ""

"""What may be modelled: kinds of kernels, and why a recording is outside all of them.

The replayer gives a number for any recording. It is worth something only for the kinds of kernels that it was compared
with measured times of: those that stage their operands by TMA and, if they multiply, feed tensor cores from what TMA
delivered. A recording outside is refused, with what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from pytest_nvfp4.model.recording import Does, Program, Recording, Shape, Unit

MOST_BY_LANES = 0.5
"""Largest share of the bytes read from global memory that lanes of warps may load, rather than TMA."""


def kind_of(recordings: Sequence[Recording]) -> str:
    """Return the kind of the kernels of a call: ``tcgen05 GEMM``, ``wgmma GEMM``, ``mma GEMM``, ``copy`` or ``other``.

    The kind of a call is that of its first launch that multiplies.
    """
    for recording in recordings:
        units = _units(recording)
        if units[Unit.TENSOR]:
            if units[Unit.COMMIT] or recording.arch.startswith("sm_10"):
                return "tcgen05 GEMM"
            return "wgmma GEMM" if recording.arch.startswith("sm_90") else "mma GEMM"
    if any(_units(recording)[Unit.TMA_LOAD] for recording in recordings):
        return "copy"
    return "other"


def refusals(recording: Recording) -> list[str]:
    """Return why no time is modelled from a recording; empty if it is within the kinds that are modelled."""
    return [*recording.refused, *(_by_lanes(recording) or _without_tma(recording)), *_chained(recording)]


def _units(recording: Recording) -> Counter[int]:
    counts: Counter[int] = Counter()
    for program in recording.programs:
        counts.update(program.operations["unit"].tolist())
    return counts


def _by_lanes(recording: Recording) -> list[str]:
    """Return the refusal of a kernel that reads most of its operands by loads of lanes."""
    lanes = tma = 0
    clusters = Counter(cluster.program for cluster in recording.clusters)
    for number, program in enumerate(recording.programs):
        for operation in program.operations:
            size = program.shapes[operation["shape"]].bytes * clusters[number]
            if operation["unit"] == Unit.GLOBAL_LOAD:
                lanes += size
            elif operation["unit"] == Unit.TMA_LOAD:
                tma += size
    if lanes > MOST_BY_LANES * (lanes + tma):
        return [
            f"{100 * lanes / (lanes + tma):.0f} % of the bytes that it reads from global memory are loaded by lanes "
            "(ld.global, cp.async): the model has no measured times of kernels without TMA, and no model of the L1 "
            "cache and of loads in flight"
        ]
    return []


def _without_tma(recording: Recording) -> list[str]:
    """Return the refusal of a kernel that neither loads by TMA nor multiplies."""
    units = _units(recording)
    if units[Unit.TMA_LOAD] or units[Unit.TENSOR]:
        return []
    return ["it neither loads by TMA nor uses tensor cores: the model has no measured times of such kernels"]


def _chained(recording: Recording) -> Iterator[str]:
    """Yield the refusal of a kernel whose MMAs multiply what its warps computed, as attention does."""
    for program in recording.programs:
        for operation in program.operations:
            shape = program.shapes[operation["shape"]]
            if operation["unit"] == Unit.TENSOR and shape.a_tmem:
                place = "tensor memory" if _writes_tmem(program) else "registers"
                yield (
                    f"an MMA{_at(recording, program, operation, shape)} takes A from {place}, where warps computed it: "
                    "the model has no measured times of attention and of mixed-input GEMMs"
                )
                return


def _writes_tmem(program: Program) -> bool:
    return bool(np.any(program.operations["unit"] == Unit.TMEM_STORE))


def _at(recording: Recording, program: Program, operation: np.void, shape: Shape) -> str:
    """Return the place of the first warp that issues an operation."""
    for warp in program.warps:
        for event in warp.events:
            if event["does"] == Does.ISSUE and program.operations[event["item"]] == operation:
                site = recording.sites[event["site"]]
                return f" of {shape.m}x{shape.n}x{shape.k} at {site.source or site.opcode}"
    return ""

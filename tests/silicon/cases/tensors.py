"""Tensor copies through maps that the driver encodes: loads, stores, reductions; the encoding is compared too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_nvfp4.driver.tensormap import ElementType
from tests.silicon.cases.copies import DONE, TO_GLOBAL, values
from tests.silicon.model import Case, case, noise
from tests.sim.tma.kernels import DATA, copy_in, copy_out, expect, first, prologue, wait
from tests.sim.tma.maps import Geometry

__all__ = ["cases"]

E = ElementType
FLAT = {
    1: (E.U8,),
    2: (E.U16, E.F16, E.BF16),
    4: (E.U32, E.S32, E.F32, E.F32_FTZ),
    8: (E.U64, E.S64, E.F64),
}
INSIDE_AND_OUT = ((0, 0), (16, 7), (64, 30), (-16, -3), (200, 0), (0, -100), (-8, 39), (88, 2))
NUMBERS = {E.U32: "u32", E.S32: "s32", E.U64: "u64", E.S64: "s64", E.F16: "f16", E.BF16: "bf16", E.F32: "f32",
           E.F64: "f64"}  # fmt: skip
BITWISE = {E.U32: "b32", E.U64: "b64"}


def cases() -> Iterator[Case]:
    for width, elements in FLAT.items():
        for element in elements:
            box = (64 // width, 12)
            geometry = Geometry(element, (96, 40), (96 * width + 16,), box)
            coordinates = [(x // 16 * 16 // width * width if width < 4 else x, y) for x, y in INSIDE_AND_OUT]
            if element is not E.F32_FTZ:
                yield _load(f"tensors.load.{element.name.lower()}", geometry, coordinates)
            if element is not E.F32_FTZ:
                yield _store(f"tensors.store.{element.name.lower()}", geometry, _positive(coordinates))
    yield from _probes()
    for swizzle in (0, 1, 2, 3):
        inner = 16 << swizzle if swizzle else 64
        for width, element in ((1, E.U8), (2, E.F16), (4, E.F32)):
            geometry = Geometry(element, (256 // width, 40), (272,), (inner // width, 16), (), swizzle)
            for offset in (0, 128, 256, 640) if width == 2 else (0,):
                name = f"swizzle-{inner if swizzle else 0}.{element.name.lower()}.at-{offset}"
                yield _load(f"tensors.load.{name}", geometry, ((0, 0), (16, 30), (-16, 5)), offset=offset)
                yield _store(f"tensors.store.{name}", geometry, ((0, 0), (16, 30), (48, 5)), offset=offset)
        narrow = Geometry(E.F16, (128, 40), (272,), (max(8, inner // 4), 16), (), swizzle)
        label = f"tensors.load.swizzle-{inner if swizzle else 0}.narrow"
        yield (_narrow if swizzle else _load)(label, narrow, ((0, 0), (8, 30)))
    for rank in (1, 2, 3, 4, 5):
        for width, element in ((1, E.U8), (2, E.BF16), (4, E.U32)):
            strides = tuple(width * n for n in (112, 560, 2240, 6720))[: rank - 1]
            geometry = Geometry(element, (96, 5, 4, 3, 2)[:rank], strides, (16, 4, 3, 2, 2)[:rank])
            # Of u8, 88 and 8 are no multiples of 16 bytes: see `_unaligned`.
            far, near = (80, -16) if width == 1 else (88, -8)
            where = [at[:rank] for at in ((0, 0, 0, 0, 0), (16, 1, 2, -1, 1), (far, 3, -2, 2, 0), (near, 4, 3, 1, -1))]
            yield _load(f"tensors.load.{rank}d.{element.name.lower()}", geometry, where)
            yield _store(f"tensors.store.{rank}d.{element.name.lower()}", geometry, _positive(where))
    for rank, steps in ((2, (1, 2)), (3, (1, 3, 2)), (5, (1, 2, 1, 2, 1)), (2, (1, 8))):
        box = (32, 8, 4, 2, 1)[:rank]
        geometry = Geometry(
            E.U32, (40, 10, 4, 3, 2)[:rank], (176, 1760, 7040, 21120)[: rank - 1], box, steps
        )  # fmt: skip
        where = [at[:rank] for at in ((0, 0, 0, 0, 0), (8, 3, 1, 1, 1), (32, 7, 3, 2, 0), (-4, -3, -1, -1, 0))]
        name = "-".join(str(step) for step in steps)
        yield _load(f"tensors.load.steps.{name}", geometry, where)
    yield _spellings()
    yield from _unaligned()
    for op, kinds in TO_GLOBAL.items():
        table = BITWISE if op in ("and", "or", "xor") else NUMBERS
        for element, kind in table.items():
            if kind in kinds:
                yield _reduction(f"tensors.reduce.{op}.{kind}", op, element, kind)


def _unaligned() -> Iterator[Case]:
    """First coordinates that are no multiple of 16 bytes, one a case, and 0 beside them; boxes 16 and 64 bytes wide.

    An H200 takes those at 0 and stops at all others with an illegal instruction.
    """
    tried = ((E.U8, 1, (0, 1, 8, 88)), (E.F16, 2, (1, 4, 92)), (E.U32, 4, (1, 2, 94)), (E.U64, 8, (1,)))
    for element, width, firsts in tried:
        for inner in (16, 64):
            geometry = Geometry(element, (96, 8), (96 * width + 16,), (inner // width, 4))
            for first_ in firsts:
                label = f"{element.name.lower()}.{inner}.{first_}"
                refused = "which is not a multiple of 16" if first_ else ""
                yield _load(f"tensors.unaligned.load.{label}", geometry, ((first_, 1),), refused=refused)
                yield _store(f"tensors.unaligned.store.{label}", geometry, ((first_, 1),), refused=refused)


def _probes() -> Iterator[Case]:
    """What no document tells, and what the simulator refuses."""
    for element, width in ((E.F16, 2), (E.BF16, 2), (E.F32, 4), (E.F64, 8)):
        geometry = Geometry(element, (96, 40), (96 * width + 16,), (64 // width, 12), fill=1)
        yield _load(f"tensors.probe.nan-fill.{element.name.lower()}", geometry, INSIDE_AND_OUT)
    tf32 = Geometry(E.F32, (96, 40), (400,), (16, 12), tf32=1)
    yield _load("tensors.probe.tf32", tf32, INSIDE_AND_OUT)
    finite = _load("tensors.load.tf32", tf32, INSIDE_AND_OUT)
    yield replace(finite, buffers={**finite.buffers, "x": values("f32", finite.buffers["x"].size, 9)})
    ftz = Geometry(E.F32_FTZ, (96, 40), (400,), (16, 12))
    subnormal = _load("tensors.probe.ftz", ftz, INSIDE_AND_OUT)
    yield replace(subnormal, buffers={**subnormal.buffers, "x": values("f32", subnormal.buffers["x"].size, 9)})
    normal = noise(subnormal.buffers["x"].size, 10, np.uint32) | np.uint32(1 << 29)
    yield replace(subnormal, name="tensors.load.f32_ftz", buffers={**subnormal.buffers, "x": normal.view(np.uint8)})
    yield _store("tensors.probe.store.ftz", ftz, ((0, 0), (16, 30)))
    yield _store("tensors.probe.store.tf32", tf32, ((0, 0), (16, 30)))
    for rank in (1, 2, 3):
        geometry = Geometry(E.U16, (96, 12, 4)[:rank], (224, 224 * 16)[: rank - 1], (16, 4, 2)[:rank])
        where = ((-8, 2, 1), (88, -2, 1), (16, 4, -1), (-32, -8, -8))[:4]
        label, refused = f"tensors.probe.store.negative.{rank}d", "must not be negative"
        yield _store(label, geometry, [at[:rank] for at in where], refused=refused)
    for steps in ((2, 1), (4, 2)):
        geometry = Geometry(E.U32, (96, 20), (400,), (32, 8), steps)
        label = f"tensors.probe.steps.{'-'.join(str(step) for step in steps)}"
        yield _load(label, geometry, ((0, 0), (8, 3), (80, 15), (-4, -3)), refused="element stride")


def _slot(geometry: Geometry) -> int:
    """Bytes from one box to the next in shared memory: where a swizzle repeats."""
    return -(-geometry.bytes // 1024) * 1024


def _positive(coordinates: Sequence[Sequence[int]]) -> list[list[int]]:
    """Out of shared memory the simulator takes no negative ones (see the probes)."""
    return [[abs(value) for value in at] for at in coordinates]


def _coordinates(at: Sequence[int]) -> str:
    return "{" + ", ".join(str(value) for value in at) + "}"


def _tensor(geometry: Geometry, seed: int) -> np.ndarray:
    return noise(-(-geometry.extent // 16) * 16 + 64, seed)


def _load(name: str, geometry: Geometry, coordinates: Sequence[Sequence[int]], *, offset: int = 0, **more: Any) -> Case:
    """One load for each coordinate, each to a place of its own."""
    rank = len(geometry.dims)
    issues, outs = [expect(geometry.bytes * len(coordinates))], []
    for number, at in enumerate(coordinates):
        start = DATA + offset + number * _slot(geometry)
        issues.append(
            f"cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
            f"[%r1+{start}], [%rd101, {_coordinates(at)}], [%r1];"
        )
        outs += [
            f"add.u64 %rd60, %rd102, {number * geometry.bytes};",
            copy_out(geometry.bytes, start=start, to="%rd60"),
        ]
    body = "\n".join([prologue(), first("\n".join(issues)), wait(), *outs])
    out = np.zeros(geometry.bytes * len(coordinates), np.uint8)
    buffers = {"x": _tensor(geometry, 1), "map": np.zeros(128, np.uint8), "out": out}
    shared = DATA + offset + len(coordinates) * _slot(geometry)
    return case(name, body, buffers, ("out",), maps={"map": (geometry, "x")}, shared=shared, **more)


def _narrow(name: str, geometry: Geometry, coordinates: Sequence[Sequence[int]]) -> Case:
    """Boxes narrower than the swizzle's span, over bytes that are known, and all that lies there afterwards."""
    size = -(-geometry.box[1] * geometry.pitch // 1024) * 1024
    total = size * len(coordinates)
    issues = [expect(geometry.bytes * len(coordinates))]
    for number, at in enumerate(coordinates):
        issues.append(
            "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
            f"[%r1+{DATA + number * size}], [%rd101, {_coordinates(at)}], [%r1];"
        )
    body = [prologue(), copy_in(total, source="%rd103"), first("\n".join(issues)), wait(), copy_out(total)]
    buffers = {"x": _tensor(geometry, 1), "map": np.zeros(128, np.uint8), "out": np.zeros(total, np.uint8),
               "in": noise(total, 7)}  # fmt: skip
    return case(name, "\n".join(body), buffers, ("out",), maps={"map": (geometry, "x")}, shared=DATA + total)


def _store(
    name: str, geometry: Geometry, coordinates: Sequence[Sequence[int]], *, offset: int = 0, **more: Any
) -> Case:
    """One store for each coordinate, each after the one before; each of other data."""
    rank, size = len(geometry.dims), -(-geometry.bytes // 128) * 128
    body = [prologue()]
    for number, at in enumerate(coordinates):
        body += [f"add.u64 %rd60, %rd102, {number * 64};", copy_in(size, start=DATA + offset, source="%rd60")]
        issue = (
            f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group "
            f"[%rd101, {_coordinates(at)}], [%r1+{DATA + offset}];"
        )
        body += [first(f"{issue}\n{DONE}", f"STORED{number}"), "bar.sync 0;"]
    buffers = {"x": _tensor(geometry, 2), "map": np.zeros(128, np.uint8), "in": noise(size + 64 * len(coordinates), 3)}
    maps = {"map": (geometry, "x")}
    return case(name, "\n".join(body), buffers, ("x",), maps=maps, shared=DATA + offset + size, **more)


def _reduction(name: str, op: str, element: ElementType, kind: str) -> Case:
    """Inside, over an edge, and nowhere; no NaN and no infinity."""
    width = Geometry(element).bits // 8
    geometry = Geometry(element, (48, 6), (64 * width,), (32, 4))
    body = [prologue(), copy_in(geometry.bytes)]
    for number, at in enumerate(((0, 0), (16, 3), (40, 5), (48, 0))):
        issue = (
            f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group "
            f"[%rd101, {_coordinates(at)}], [%r1+{DATA}];"
        )
        body += [first(f"{issue}\n{DONE}", f"REDUCED{number}"), "bar.sync 0;"]
    size = -(-geometry.extent // 16) * 16 + 64
    buffers = {"x": values(kind, size, 4), "map": np.zeros(128, np.uint8), "in": values(kind, geometry.bytes, 5)}
    maps = {"map": (geometry, "x")}
    return case(name, "\n".join(body), buffers, ("x",), maps=maps, shared=DATA + geometry.bytes)


def _spellings() -> Case:
    """Destinations, hints, and multicast to a pair."""
    geometry = Geometry(E.F16, (96, 40), (208,), (64, 16), (), 3)
    forms = [
        ("shared::cta", "", ""),
        ("shared::cluster", "", ""),
        ("shared::cta", ".L2::cache_hint", ", %rd99"),
        ("shared::cluster", ".multicast::cluster", ", %rs1"),
        ("shared::cluster", ".multicast::cluster.L2::cache_hint", ", %rs1, %rd99"),
    ]
    each = geometry.bytes
    meet = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
    # Rank 0 issues what is multicast, and each rank the rest.
    issues = [expect(each * len(forms)), "mov.b16 %rs1, 3;", "createpolicy.fractional.L2::evict_first.b64 %rd99, 1.0;"]
    for number, (dst, tail, operands) in enumerate(forms):
        if "multicast" in tail and "setp.ne.u32 %p4, %r2, 0;" not in issues:
            issues += ["setp.ne.u32 %p4, %r2, 0;", "@%p4 bra ISSUED;"]
        issues.append(
            f"cp.async.bulk.tensor.2d.{dst}.global.tile.mbarrier::complete_tx::bytes{tail} "
            f"[%r1+{DATA + number * each}], [%rd101, {{{8 * number}, {number}}}], [%r1]{operands};"
        )
    body = [prologue(), meet, first("\n".join([*issues, "ISSUED:"])), wait()]
    body += [copy_out(each * len(forms)), meet]
    out = np.zeros(2 * each * len(forms), np.uint8)
    buffers = {"x": _tensor(geometry, 6), "map": np.zeros(128, np.uint8), "out": out}
    return case(
        "tensors.load.spellings", "\n".join(body), buffers, ("out",), maps={"map": (geometry, "x")},
        shared=DATA + each * len(forms), grid=(2, 1, 1), cluster=(2, 1, 1),
    )  # fmt: skip

"""Random operands of ``tcgen05.mma``, placed element by element, and the run of a short chain."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.harness import make_ctas, matrix_bits, own
from tests.sim.tcgen05.places import E2M1, E2M3, E3M2, E4M3, E5M2, PITCH, k_major, lane_column, mn_major

CODES = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "f16": 0, "bf16": 1, "tf32": 2, "u8": 0, "s8": 1}
K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
SFA, SFB = 256, 272


def draw(
    rng: np.random.Generator, form: str, shape: tuple[int, int], *, packed: bool, mn: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Values, and the bytes of each element (or pair). ``mn``: groups of sub-byte elements are of one k."""
    if mn:
        values, data = draw(rng, form, shape[::-1], packed=packed)
        return values.T, data.transpose(1, 0, 2)
    rows, k = shape
    if packed:
        codes = rng.integers(0, 16, shape, dtype=np.uint8)
        return E2M1[codes], (codes[:, 0::2] | codes[:, 1::2] << 4)[:, :, None]
    if form in ("s8", "u8"):
        codes = rng.integers(0, 256, shape, dtype=np.uint8)
        return (codes.view(np.int8) if form == "s8" else codes).astype(np.float64), codes[:, :, None]
    if form in ("e4m3", "e5m2"):
        table, top = (E4M3, 0x60) if form == "e4m3" else (E5M2, 0x48)
        codes = (rng.integers(0, top, shape) | rng.integers(0, 2, shape) << 7).astype(np.uint8)
        return table[codes], codes[:, :, None]
    if form in ("e2m3", "e3m2", "e2m1"):
        table = {"e2m3": E2M3, "e3m2": E3M2, "e2m1": E2M1}[form]
        codes = rng.integers(0, len(table), shape, dtype=np.uint8)
        out = np.full(shape, 0xEE, np.uint8)  # what lies in the padding must not matter
        for r in range(rows):
            for start in range(0, k, 16):
                width = 4 if form == "e2m1" else 6
                number = sum(int(c) << width * i for i, c in enumerate(codes[r, start : start + 16]))
                out[r, start : start + 2 * width] = np.frombuffer(number.to_bytes(2 * width, "little"), np.uint8)
        return table[codes], out[:, :, None]
    if form == "f16":
        values = rng.standard_normal(shape).astype(np.float16)
        return values.astype(np.float64), values.view(np.uint8).reshape(rows, k, 2)
    values = rng.standard_normal(shape).astype(np.float32)
    bits = values.view(np.uint32)
    if form == "bf16":
        bits = bits & 0xFFFF0000
        half = (bits >> 16).astype(np.uint16)
        return bits.view(np.float32).astype(np.float64), half.view(np.uint8).reshape(rows, k, 2)
    seen = (bits & 0xFFFFE000).view(np.float32).astype(np.float64)
    return seen, values.view(np.uint8).reshape(rows, k, 4)


def put(cta: Any, start: int, data: np.ndarray, *, swizzle: int, mn: bool) -> int:
    """Write an operand ``[row][k][bytes]``; its descriptor."""
    rows, count, size = data.shape
    pitch = PITCH.get(swizzle, 16)
    atom = 4 if swizzle == 1 else 8
    if mn:
        stride = atom * pitch if swizzle else 128 * max(1, count // 8)
        leading = stride * max(1, count // atom) if swizzle else 128
    else:
        stride = 8 * pitch
        leading = 0 if swizzle else stride * (rows // 8)
    for r in range(rows):
        for k in range(count):
            if mn:
                at = mn_major(r, k, size, swizzle=swizzle, stride=stride, leading=leading)
                cta.shared.data[start - 1024 + at : start - 1024 + at + size] = data[r, k]
                cta.shared.written[start - 1024 + at : start - 1024 + at + size] = True
            else:
                for i in range(size):
                    at = start - 1024 + k_major(r, k * size + i, swizzle=swizzle, stride=stride, leading=leading)
                    cta.shared.data[at] = data[r, k, i]
                    cta.shared.written[at] = True
    return matrix_bits(start, leading=leading, stride=stride, swizzle=swizzle)


def scale_words(tmem: Tmem, column: int, codes: np.ndarray, *, first: int, quadrants: Any = range(4)) -> None:
    """Put scale factors ``[row][vector]`` at byte ``first`` of the words, in all quadrants."""
    rows, vector = codes.shape
    for r in range(rows):
        for j in range(vector):
            for q in quadrants:
                lane, col, byte = 32 * q + r % 32, column + r // 32, first + j
                word = int(tmem.data[col, lane]) & ~(0xFF << 8 * byte) | int(codes[r, j]) << 8 * byte
                tmem.data[col, lane] = word
                tmem.some[col, lane] = True


def idesc(
    kind: str, a: str, b: str, m: int, n: int, *, d: int = 1, a_mn: int = 0, b_mn: int = 0, a_neg: int = 0,
    b_neg: int = 0, scale: int = 0, ids: tuple[int, int] = (0, 0), sat: int = 0,
) -> int:  # fmt: skip
    """An instruction descriptor, from the ISA's tables."""
    ca, cb = CODES[a], CODES[b]
    if kind in ("mxf4", "mxf4nvf4"):
        ca = cb = 1
    bits = ca << 7 | cb << 10 | a_neg << 13 | b_neg << 14 | a_mn << 15 | b_mn << 16 | (n >> 3) << 17
    if kind.startswith("mx"):
        return bits | ids[1] << 4 | scale << 23 | (m >> 7) << 27 | ids[0] << 29
    return bits | d << 4 | sat << 3 | (m >> 4) << 24


def run(
    kind: str, a: str, b: str, *, m: int = 128, n: int = 64, group: int = 1, count: int = 2, swizzle_a: int = 2,
    swizzle_b: int = 2, a_mn: bool = False, b_mn: bool = False, d: int = 1, negate: tuple[int, int] = (0, 0),
    vector: int = 0, scale: str = "", ids: tuple[int, int] = (0, 0), lane: int = 0, seed: int = 0, sat: int = 0,
    column: int = 0, ws: bool = False,
) -> tuple[np.ndarray, np.ndarray, Any]:  # fmt: skip
    """Run ``count`` instructions on fresh operands; what TMEM holds, as bits ``[row][n]``, and the sums by step."""
    rng = np.random.default_rng(seed)
    ctas = make_ctas(group)
    for cta in ctas:
        own(cta)
    k, packed = K[kind], K[kind] == 64
    rows = m // group
    partial = []
    form = MmaForm(kind, group, vector, False, 0, "test", ws=ws)
    bits = idesc(
        kind, a, b, m, n, d=d, a_mn=int(a_mn), b_mn=int(b_mn), a_neg=negate[0], b_neg=negate[1],
        scale=int(scale == "ue8m0"), ids=ids, sat=sat,
    )  # fmt: skip
    for step in range(count):
        full_a, full_b = [], []
        scaled_b: list[np.ndarray] = []
        sb = np.ones((n, 1))
        for rank, cta in enumerate(ctas):
            va, da = draw(rng, a, (rows, k), packed=packed, mn=a_mn)
            vb, db = draw(rng, b, (n // group, k), packed=packed, mn=b_mn)
            desc_a = put(cta, 1024, da, swizzle=swizzle_a, mn=a_mn)
            desc_b = put(cta, 1024 + 65536, db, swizzle=swizzle_b, mn=b_mn)
            if vector:
                low, high = (0x20, 0x60) if scale == "ue4m3" else (120, 135)
                ca = rng.integers(low, high, (rows, vector), dtype=np.uint8)
                if rank == 0:
                    cb = rng.integers(low, high, (n, vector), dtype=np.uint8)
                table = E4M3 if scale == "ue4m3" else np.array([2.0 ** (c - 127) for c in range(256)])
                scale_words(cta.unit(Tmem), SFA, ca, first=ids[0])
                if (m, group) == (128, 2):  # each half of N for the lanes that hold it
                    scale_words(cta.unit(Tmem), SFB, cb[: n // 2], first=ids[1], quadrants=(0, 1))
                    scale_words(cta.unit(Tmem), SFB, cb[n // 2 :], first=ids[1], quadrants=(2, 3))
                else:
                    scale_words(cta.unit(Tmem), SFB, cb, first=ids[1])
                va = va * np.repeat(table[ca], k // vector, axis=1)
                sb = np.repeat(table[cb], k // vector, axis=1)
            full_a.append(va * (-1 if negate[0] else 1))
            full_b.append(vb * (-1 if negate[1] else 1))
        scaled_b = np.concatenate(full_b) * sb
        partial.append(np.concatenate(full_a) @ scaled_b.T)
        # The address carries the SF id in its top bits, as the DSL has it.
        args = (SFA | ids[0] << 30, SFB | ids[1] << 30) if vector else (0, 0)
        issue(ctas[0].warps[0], 1, lane << 16 | column, desc_a, desc_b, bits, step > 0, (), *args, form, 0)
    got = np.zeros((m, n), np.uint32)
    for rank, cta in enumerate(ctas):
        tmem = cta.unit(Tmem)
        tmem.settle(0, 512)
        for r in range(rows):
            for c in range(n):
                at, col = lane_column(r, c, m=m, group=group, columns=n, align=lane, ws=ws)
                got[rank * rows + r, c] = tmem.data[column + col, at]
    return got, np.array(partial), ctas


def rounded(partial: np.ndarray, kind: type) -> np.ndarray:
    value = np.zeros(partial.shape[1:], kind)
    for products in partial:
        value = (value.astype(np.float64) + products).astype(kind)
    return value


def once(**changes: Any) -> None:
    """One legal NVFP4 instruction, with changes."""
    _, _, ctas = run("mxf4nvf4", "e2m1", "e2m1", vector=4, scale="ue4m3", count=1)
    core = ctas[0].unit(TensorCore)
    desc_a, desc_b = next(iter(core.plans))[1:3]
    arguments: dict[str, Any] = {
        "mask": 1, "d": 0, "a": desc_a, "b": desc_b, "enable": True,
        "bits": idesc("mxf4nvf4", "e2m1", "e2m1", 128, 64),
        "sfa": SFA, "sfb": SFB, "form": MmaForm("mxf4nvf4", 1, 4, False, 0, "test"), "prepare": None,
    }  # fmt: skip
    arguments.update(changes)
    g = arguments
    if g["prepare"] is not None:
        g["prepare"](core.tmem)
    issue(
        ctas[0].warps[0], g["mask"], g["d"], g["a"], g["b"], g["bits"], g["enable"], (), g["sfa"], g["sfb"],
        g["form"], 0,
    )  # fmt: skip
    core.tmem.settle(0, 512)

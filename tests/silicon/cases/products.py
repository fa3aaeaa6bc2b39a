"""wgmma: every type and shape in every layout on whole numbers; real numbers within a stated bound.

Of whole numbers (and quarters) every partial sum is representable, so that no order and no width of an accumulator can
make a difference. With real numbers the ISA leaves precision and order open; Hopper's fp8 products are known to keep
fewer bits than fp32 has. The simulator's model of that (`pytest_nvfp4.sim.wgmma.product`) was made after the recording;
it gives every bit of it, so that equality is asked for here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.wgmma.formats import OPERAND_TYPES
from tests.silicon.model import Case, case
from tests.sim.wgmma import oracle
from tests.sim.wgmma.case import COMMIT, FENCE, load, load_image, registers, store, wait

__all__ = ["cases"]

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
CODES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32}
K_MAJOR = ((0, 128, 256), (0, 2048 + 128, 128), (32, 16, 256), (64, 16, 512), (128, 16, 1024))
"""Swizzle width, leading and stride offsets in bytes."""
MN_MAJOR = (
    (0, 4096, 128, 192), (32, 512, 8192, 192), (64, 1024, 8192, 192), (128, 2048, 1024, 192), (0, 128, 256, 8),
    (128, 8192, 1024, 40),
)  # fmt: skip
RELATIVE = "sub.u32 %r8, %r2, 1024; shr.u32 %r8, %r8, 4; cvt.u64.u32 %rd50, %r8;"
"""Descriptors hold addresses for shared memory that starts at 1,024; %rd50 is what to add where it does not."""

Layout = dict[str, int]


@lru_cache(maxsize=8)
def _table(name: str) -> dict[float, int]:
    codes = np.arange(256, dtype=np.uint8)
    decoded = OPERAND_TYPES[name].decode(codes.reshape(1, -1)).reshape(-1)
    return {float(value): int(code) for code, value in zip(codes[::-1], decoded[::-1], strict=True)}


def encode(values: NDArray[np.float64], name: str) -> NDArray[Any]:
    """Numbers that the type holds as its codes."""
    if name == "f16":
        return values.astype(np.float16).view(np.uint16)
    if name in ("bf16", "tf32"):
        bits = values.astype(np.float32).view(np.uint32)
        return (bits >> np.uint32(16)).astype(np.uint16) if name == "bf16" else bits
    if name in ("s8", "u8"):
        return values.astype(np.int64).astype(np.uint8)
    table = _table(name)
    return np.array([table[float(value)] for value in values.reshape(-1)], np.uint8).reshape(values.shape)


def small(random: np.random.Generator, name: str, shape: tuple[int, int]) -> NDArray[Any]:
    """Whole numbers of at most 6, and quarters of them where the type has those."""
    values = random.integers(0 if name == "u8" else -6, 7, size=shape).astype(np.float64)
    return encode(values if name in ("s8", "u8", "e5m2") else values / 4, name)


def real(random: np.random.Generator, name: str, shape: tuple[int, int]) -> NDArray[Any]:
    """Any finite numbers of moderate size."""
    if name == "tf32":
        bits: NDArray[np.uint32] = random.standard_normal(shape).astype(np.float32).view(np.uint32)
        return bits & np.uint32(0xFFFF_E000)
    if name == "f16":
        return random.standard_normal(shape).astype(np.float16).view(np.uint16)
    if name == "bf16":
        return encode(random.standard_normal(shape), name)
    codes: NDArray[np.uint8] = random.integers(0, 0x70, shape).astype(np.uint8)
    return codes | (random.integers(0, 2, shape) << 7).astype(np.uint8)


def shape_of(name: str, n: int) -> str:
    return f"m64n{n}k{256 // BITS[name]}"


def flags_of(name: str, *, negate: tuple[int, int] = (1, 1), transposed: int = 0, from_registers: bool = False) -> str:
    """The immediates after scale-d, with their comma."""
    if name in ("s8", "u8"):
        return ""
    text = f", {negate[0]}, {negate[1]}"
    if BITS[name] == 16:
        text += f", {transposed}" if from_registers else f", {transposed}, {transposed}"
    return text


def multiply(opcode: str, count: int, a: int | str, b: int, *, flags: str, scale: str = "1") -> str:
    """One instruction on %r20 onwards; ``a`` is a descriptor or a register list."""
    lines = [f"setp.ne.b32 %p1, {scale}, 0;", f"mov.b64 %rd10, {b};", "add.s64 %rd10, %rd10, %rd50;"]
    if isinstance(a, int):
        lines += [f"mov.b64 %rd9, {a};", "add.s64 %rd9, %rd9, %rd50;"]
        a = "%rd9"
    lines.append(f"wgmma.mma_async.sync.aligned.{opcode} {registers(20, count)}, {a}, %rd10, %p1{flags};")
    return "\n".join(lines)


def product(
    name: str,
    image: NDArray[np.uint8],
    body: Sequence[str],
    count: int,
    *,
    before: Sequence[str] = (),
    extra: dict[str, NDArray[Any]] | None = None,
) -> Case:
    """A warpgroup's case: the image to shared memory, the instructions, the accumulator out, by thread."""
    text = [load_image(image.size), RELATIVE, *before, FENCE, *body, COMMIT, wait(), store(20, count)]
    buffers = {"image": image, "out": np.zeros((128, count), np.uint32), **(extra or {})}
    return case(name, "\n".join(text), buffers, ("out",), block=(128, 1, 1), shared=image.size)


def sum_type(name: str) -> str:
    return "s32" if name in ("s8", "u8") else "f32"


def cases() -> Iterator[Case]:
    yield from _k_major()
    yield from _mn_major()
    yield from _a_in_registers()
    yield from _widths()
    yield from _chains()
    yield from _integers()
    yield from _mixed()
    yield from _every_code()
    yield from _real()


def _pair(a_at: int, b_at: int, **layout: int) -> tuple[int, int]:
    return oracle.descriptor(a_at, **layout), oracle.descriptor(b_at, **layout)


def _k_major() -> Iterator[Case]:
    for name, bits in BITS.items():
        for width, leading, stride in K_MAJOR:
            random = np.random.default_rng([width, leading, bits])
            n, k = 24, 256 // bits
            image = np.zeros(16384 + 8192, np.uint8)
            layout = {"width": width, "leading": leading, "stride": stride}
            a_at, b_at = oracle.SMEM, oracle.SMEM + 16384
            oracle.place(image, small(random, name, (64, k)), address=a_at, **layout)
            oracle.place(image, small(random, name, (n, k)), address=b_at, **layout)
            opcode = f"{shape_of(name, n)}.{sum_type(name)}.{name}.{name}"
            body = [multiply(opcode, n // 2, *_pair(a_at, b_at, **layout), flags=flags_of(name), scale="0")]
            yield product(f"products.k-major.{name}.{width}.{leading}", image, body, n // 2)


def _mn_major() -> Iterator[Case]:
    for name in ("f16", "bf16"):
        for width, leading, stride, n in MN_MAJOR:
            random = np.random.default_rng([width, n])
            image = np.zeros(65536, np.uint8)
            layout = {"width": width, "leading": leading, "stride": stride}
            a_at, b_at = oracle.SMEM, oracle.SMEM + 32768
            oracle.place(image, small(random, name, (64, 16)), address=a_at, transposed=True, **layout)
            oracle.place(image, small(random, name, (n, 16)), address=b_at, transposed=True, **layout)
            flags = flags_of(name, transposed=1)
            opcode = f"m64n{n}k16.f32.{name}.{name}"
            body = [multiply(opcode, n // 2, *_pair(a_at, b_at, **layout), flags=flags, scale="0")]
            yield product(f"products.mn-major.{name}.{width}.{n}", image, body, n // 2)


def _a_in_registers() -> Iterator[Case]:
    for name, bits in BITS.items():
        random = np.random.default_rng([7, bits])
        n, k = 16, 256 // bits
        image = np.zeros(4096, np.uint8)
        a = small(random, name, (64, k))
        oracle.place(image, small(random, name, (n, k)), address=oracle.SMEM, width=32, stride=256)
        b = oracle.descriptor(oracle.SMEM, width=32, stride=256)
        opcode = f"{shape_of(name, n)}.{sum_type(name)}.{name}.{name}"
        flags = flags_of(name, negate=(-1, 1), from_registers=True)
        body = [multiply(opcode, n // 2, registers(200, 4), b, flags=flags, scale="0")]
        extra = {"a": oracle.a_registers(a)}
        yield product(f"products.a-in-registers.{name}", image, body, n // 2, before=[load(200, 4, 2)], extra=extra)


def _widths() -> Iterator[Case]:
    for name in ("f16", "e4m3", "s8"):
        for n in (8, 32, 64, 96, 128, 160, 256):
            yield from _chain(f"products.width.{name}.{n}", name, n, 1, "f32" if name != "s8" else "s32")


def _chain(
    label: str,
    name: str,
    n: int,
    steps: int,
    d: str,
    *,
    negate: tuple[int, int] = (1, 1),
    draw: Any = small,
    start: NDArray[Any] | None = None,
    suffix: str = "",
) -> Iterator[Case]:
    """Steps of k side by side in rows of 128 bytes, added to a start (or to nothing)."""
    random = np.random.default_rng([n, steps, BITS[name]])
    k, width = 256 // BITS[name], 128
    image = np.zeros(8192 + 128 * n, np.uint8)
    for at, rows in ((oracle.SMEM, 64), (oracle.SMEM + 8192, n)):
        oracle.place(image, draw(random, name, (rows, k * steps)), address=at, width=width, stride=1024)
    count = n // 2 if d != "f16" else n // 4
    body = []
    for i in range(steps):
        pair = _pair(oracle.SMEM + 32 * i, oracle.SMEM + 8192 + 32 * i, width=width, stride=1024)
        scale = "1" if i or start is not None else "0"
        opcode = f"{shape_of(name, n)}.{d}.{name}.{name}{suffix}"
        body.append(multiply(opcode, count, *pair, flags=flags_of(name, negate=negate), scale=scale))
    before = [load(20, count, 2)] if start is not None else []
    extra = {"start": oracle.to_registers(start)} if start is not None else {}
    yield product(label, image, body, count, before=before, extra=extra)


def _chains() -> Iterator[Case]:
    random = np.random.default_rng(5)
    for d, name in (("f32", "f16"), ("f16", "f16"), ("f32", "bf16"), ("f32", "tf32"), ("f32", "e4m3"), ("f16", "e5m2")):
        kind: Any = np.float32 if d == "f32" else np.float16
        start = random.integers(-8, 9, size=(64, 40)).astype(kind)
        for negate in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
            label = f"products.chain.{d}.{name}." + "".join("+" if sign > 0 else "-" for sign in negate)
            yield from _chain(label, name, 40, 4, d, negate=negate, start=start)
        yield from _chain(f"products.chain.{d}.{name}.from-nothing", name, 40, 4, d)


def _integers() -> Iterator[Case]:
    """Sums that leave 32 bits: they wrap, or saturate after every instruction."""

    def large(random: np.random.Generator, _name: str, shape: tuple[int, int]) -> NDArray[np.uint8]:
        rows: NDArray[np.uint8] = np.full(shape, 127, np.uint8)
        if shape[0] == 64:
            rows[:, 32:] = 128  # -128 as s8
        return rows + random.integers(0, 1, shape).astype(np.uint8)

    start = np.full((64, 8), 2**31 - 1000, np.int32)
    start[::2] = -(2**31) + 1000
    for name in ("s8", "u8"):
        for suffix in ("", ".satfinite"):
            label = f"products.integer.{name}{suffix}"
            yield from _chain(label, name, 8, 2, "s32", draw=large, start=start, suffix=suffix)


def _mixed() -> Iterator[Case]:
    for a_name, b_name in (("e4m3", "e5m2"), ("e5m2", "e4m3"), ("s8", "u8"), ("u8", "s8")):
        random = np.random.default_rng(8)
        image = np.zeros(8192, np.uint8)
        oracle.place(image, small(random, a_name, (64, 32)), address=oracle.SMEM, width=32, stride=256)
        oracle.place(image, small(random, b_name, (16, 32)), address=oracle.SMEM + 4096, width=32, stride=256)
        pair = _pair(oracle.SMEM, oracle.SMEM + 4096, width=32, stride=256)
        opcode = f"m64n16k32.{sum_type(a_name)}.{a_name}.{b_name}"
        body = [multiply(opcode, 8, *pair, flags=flags_of(a_name), scale="0")]
        yield product(f"products.mixed.{a_name}.{b_name}", image, body, 8)


def _every_code() -> Iterator[Case]:
    """Each code times one, alone in its row: what the type's codes mean, infinities and NaN included."""
    for name, one in (("e4m3", 0x38), ("e5m2", 0x3C), ("f16", 0x3C00), ("bf16", 0x3F80)):
        bits = BITS[name]
        for block in range(4):
            a = np.zeros((64, 256 // bits), CODES[bits])
            step = 1 if bits == 8 else 256
            a[:, 0] = (np.arange(64 * block, 64 * block + 64) * step + (step > 1) * np.arange(64)) & ((1 << bits) - 1)
            b = np.zeros((8, 256 // bits), CODES[bits])
            b[:, 0] = one
            image = np.zeros(8192, np.uint8)
            oracle.place(image, a, address=oracle.SMEM, width=32, stride=256)
            oracle.place(image, b, address=oracle.SMEM + 4096, width=32, stride=256)
            pair = _pair(oracle.SMEM, oracle.SMEM + 4096, width=32, stride=256)
            opcode = f"{shape_of(name, 8)}.f32.{name}.{name}"
            body = [multiply(opcode, 4, *pair, flags=flags_of(name), scale="0")]
            yield product(f"products.codes.{name}.{block}", image, body, 4)


def _real() -> Iterator[Case]:
    for d, name, steps in (
        ("f32", "f16", 4),
        ("f32", "bf16", 4),
        ("f32", "tf32", 4),
        ("f16", "f16", 1),
        ("f32", "e4m3", 4),
        ("f32", "e5m2", 4),
    ):
        yield from _chain(f"products.real.{d}.{name}", name, 64, steps, d, draw=real)

"""ldmatrix, stmatrix and movmatrix: every number and order that sm_90 has; mma.sync on whole numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.silicon.cases.blocks import SEED, by_thread
from tests.silicon.model import Case, noise

__all__ = ["cases"]

ROWS = """
mul.wide.u32 %rd10, %r0, 16; add.u64 %rd10, %rd10, %rd101;
shl.b32 %r10, %r0, 4; add.u32 %r10, %r10, %r99;
"""
"""%r10: row %r0 of the image; %r11: another, in an order of its own."""
ORDER = "mul.lo.u32 %r11, %r0, 37; add.u32 %r11, %r11, 5; and.b32 %r11, %r11, 127; shl.b32 %r11, %r11, 4;"


def _image(size: int = 2048) -> str:
    values = "{%r20, %r21, %r22, %r23}"
    return ROWS + "\n".join(
        f"ld.global.v4.b32 {values}, [%rd10+{at}]; st.shared.v4.b32 [%r10+{at}], {values};"
        for at in range(0, size, 512)
    ) + f"\nbar.sync 0;\n{ORDER} add.u32 %r11, %r11, %r99;\n"  # fmt: skip


def cases() -> Iterator[Case]:
    image = noise(2048, 1)
    body, names, at = _image(), {}, 30
    for trans in ("", ".trans"):
        for number in (1, 2, 4):
            for space in (".shared", ".shared::cta"):
                registers = [f"%r{at + i}" for i in range(number)]
                text = f"ldmatrix.sync.aligned.m8n8.x{number}{trans}{space}.b16"
                body += f"{text} {{{', '.join(registers)}}}, [%r11];\n"
                names |= {f"{text} {i}": register for i, register in enumerate(registers)}
                at += number
    yield by_thread("matrices.ldmatrix", body, names, shared=2048, buffers={"image": image})

    for trans in ("", ".trans"):
        for number in (1, 2, 4):
            body = _image() + SEED + "mul.lo.u32 %r2, %r1, 3; mul.lo.u32 %r3, %r1, 5; mul.lo.u32 %r4, %r1, 7;\n"
            values = ", ".join(f"%r{1 + i}" for i in range(number))
            body += f"stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 [%r11], {{{values}}};\nbar.sync 0;\n"
            names = {}
            for row in range(4):
                body += f"ld.shared.v4.b32 {{%r{30 + 4 * row}, %r{31 + 4 * row}, %r{32 + 4 * row}, %r{33 + 4 * row}}}, "
                body += f"[%r10+{512 * row}];\n"
                names |= {f"row {32 * row} + thread, word {i}": f"%r{30 + 4 * row + i}" for i in range(4)}
            label = f"matrices.stmatrix.x{number}{trans}"
            yield by_thread(label, body, names, shared=2048, buffers={"image": image})

    body = SEED + "movmatrix.sync.aligned.m8n8.trans.b16 %r10, %r1;\n"
    yield by_thread("matrices.movmatrix", body, ["%r10"])
    yield from _products()


def _products() -> Iterator[Case]:
    """``mma.sync`` of whole numbers: sums are exact, so that their order does not matter."""
    random = np.random.default_rng(3)
    small = {"f16": np.float16, "s8": np.int8, "u8": np.uint8}
    for name, shape, d, kind, a, b, c in (
        ("m16n8k16.f32.f16", "m16n8k16", "f32", "f16", 4, 2, 4),
        ("m16n8k8.f32.f16", "m16n8k8", "f32", "f16", 2, 1, 4),
        ("m16n8k16.f16.f16", "m16n8k16", "f16", "f16", 4, 2, 2),
        ("m16n8k16.f32.bf16", "m16n8k16", "f32", "bf16", 4, 2, 4),
        ("m16n8k8.f32.bf16", "m16n8k8", "f32", "bf16", 2, 1, 4),
        ("m16n8k4.f32.tf32", "m16n8k4", "f32", "tf32", 2, 1, 4),
        ("m16n8k8.f32.tf32", "m16n8k8", "f32", "tf32", 4, 2, 4),
        ("m16n8k16.s32.s8", "m16n8k16", "s32", "s8", 2, 1, 4),
        ("m16n8k32.s32.s8", "m16n8k32", "s32", "s8", 4, 2, 4),
        ("m16n8k32.s32.u8", "m16n8k32", "s32", "u8", 4, 2, 4),
        ("m16n8k32.f32.e4m3", "m16n8k32", "f32", "e4m3", 4, 2, 4),
        ("m16n8k32.f32.e5m2", "m16n8k32", "f32", "e5m2", 4, 2, 4),
    ):
        count = 32 * (a + b)
        values = random.integers(0 if kind == "u8" else -4, 5, 4 * count)
        if kind in small:
            words = values.astype(small[kind]).view(np.uint8)[: 4 * count].view(np.uint32)
        elif kind == "bf16":
            words = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)[: 2 * count].view(np.uint32)
        elif kind == "tf32":
            words = values.astype(np.float32).view(np.uint32)[:count]
        else:  # e4m3, e5m2: the codes of -2, -1, 0, 1, 2
            codes = {"e4m3": [0xC0, 0xB8, 0, 0x38, 0x40], "e5m2": [0xC0, 0xBC, 0, 0x3C, 0x40]}[kind]
            words = np.array(codes, np.uint8)[np.clip(values, -2, 2) + 2].view(np.uint32)[:count]
        start = random.integers(-99, 100, 64 * c)
        starts = {"f32": start.astype(np.float32), "f16": start.astype(np.float16), "s32": start.astype(np.int32)}[d]
        table = np.concatenate([words, starts.view(np.uint32)[: 32 * c]])
        body = "add.u64 %rd10, %rd98, %rd101;\n"
        body += "".join(f"ld.global.b32 %r{10 + i}, [%rd10+{128 * i}];\n" for i in range(a + b + c))
        groups = [
            ", ".join(f"%r{i}" for i in range(s, s + n)) for s, n in ((50, c), (10, a), (10 + a, b), (10 + a + b, c))
        ]
        opcode = f"mma.sync.aligned.{shape}.row.col.{d}.{kind}.{kind}.{d}"
        if d == "f32":
            for letter in (0, 3):
                groups[letter] = groups[letter].replace("%r", "%f")
            body += "".join(f"mov.b32 %f{10 + a + b + i}, %r{10 + a + b + i};\n" for i in range(c))
        body += f"{opcode} " + ", ".join(f"{{{group}}}" for group in groups) + ";\n"
        if d == "f32":
            body += "".join(f"mov.b32 %r{50 + i}, %f{50 + i};\n" for i in range(c))
        yield by_thread(f"matrices.mma.{name}", body, [f"%r{50 + i}" for i in range(c)], buffers={"table": table})

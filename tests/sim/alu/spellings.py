"""Spellings of arithmetic instructions, legal or not, for ptxas and the lowerings to judge."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

__all__ = ["NOT_MODELLED", "candidates", "judge"]

NOT_MODELLED = {
    r"fma\.\w+\.oob\..*": "the NaN that stands for out-of-bounds",
    r"fma\.r[zmp]\.(relu\.)?bf16(x2)? .*": "the ISA has .rn only for bf16",
    r"isspacep\.(const|param|param::entry) .*": "constants and parameters lie in global memory here",
    r"rcp\.r\w\.ftz\.f64 .*": "the ISA has .ftz for f64 with .approx only",
    r"cvt\.(bf16\.f16|f16\.bf16) .*": "the ISA asks for a rounding",
    r"(addc|subc)\.u16 .*": "the ISA has 32 and 64 bits",
}
"""Spellings that ptxas accepts and the simulator does not, and why."""

_BITS = {
    "pred": 1, "u8": 8, "s8": 8, "b8": 8, "u16": 16, "s16": 16, "b16": 16, "f16": 16, "bf16": 16, "u32": 32, "s32": 32,
    "b32": 32, "f32": 32, "tf32": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "u64": 64, "s64": 64,
    "b64": 64, "f64": 64, "f32x2": 64, "b128": 128, "e4m3x2": 16, "e5m2x2": 16, "e2m3x2": 16, "e3m2x2": 16, "e2m1x2": 8,
    "ue8m0x2": 16,
}  # fmt: skip
_LETTER = {1: "p", 8: "b", 16: "h", 32: "r", 64: "d", 128: "q"}
_TYPES = [name for name in list(_BITS)[:23] if name != "tf32"]
_VALUES = _TYPES[1:]
_NUMBERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64"]
_NARROW = list(_BITS)[24:]
_COMPARE = [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "lo",
    "ls",
    "hi",
    "hs",
    "equ",
    "neu",
    "ltu",
    "leu",
    "gtu",
    "geu",
    "num",
    "nan",
]
_SPACES = ["global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"]


def _maybe(*names: str) -> list[str]:
    return ["", *(f".{name}" for name in names)]


_ROUND = _maybe("rn", "rz", "rm", "rp")
_FTZ, _SAT, _COMBINE = _maybe("ftz"), _maybe("sat"), _maybe("and", "or", "xor")


def _reg(kind: str, number: int) -> str:
    return f"%{_LETTER[_BITS[kind]]}{number}"


def _same(opcode: str, kind: str, sources: int, result: str = "") -> str:
    registers = [_reg(result or kind, 0), *(_reg(kind, number) for number in range(1, sources + 1))]
    return f"{opcode} {', '.join(registers)}"


def candidates() -> list[str]:
    """Every spelling once."""
    parts = (_integer(), _logic(), _float(), _comparison(), _movement(), _conversion())
    return list(dict.fromkeys(text for part in parts for text in part))


def _integer() -> Iterator[str]:
    for (root, sources), part, sat, kind in product((("mul", 2), ("mad", 3)), ("lo", "hi", "wide"), _SAT, _VALUES):
        bits = _BITS[kind] * (2 if part == "wide" else 1)
        if bits <= 64:
            registers = [f"%{_LETTER[bits]}0", _reg(kind, 1), _reg(kind, 2), f"%{_LETTER[bits]}3"][: sources + 1]
            yield f"{root}.{part}{sat}.{kind} {', '.join(registers)}"
        if part != "wide":
            yield _same(f"{root}24.{part}{sat}.{kind}", kind, sources)
    for (root, sources), kind in product((("sad", 3), ("rem", 2), ("bfe", 0), ("bfi", 0)), _VALUES):
        if sources:
            yield _same(f"{root}.{kind}", kind, sources)
    for kind in _VALUES:
        yield f"bfe.{kind} {_reg(kind, 0)}, {_reg(kind, 1)}, %r2, %r3"
        yield f"bfi.{kind} {_reg(kind, 0)}, {_reg(kind, 1)}, {_reg(kind, 2)}, %r3, %r4"
    for root, carry, kind in product(("add", "addc", "sub", "subc"), _maybe("cc"), ("u16", "u32", "s32", "u64", "s64")):
        yield _same(f"{root}{carry}.{kind}", kind, 2)
    for root, part, carry, kind in product(("mad", "madc"), ("lo", "hi"), _maybe("cc"), ("u32", "s32", "u64", "s64")):
        yield _same(f"{root}.{part}{carry}.{kind}", kind, 3)
    for first, second in product(("u32", "s32", "b32"), repeat=2):
        yield f"dp4a.{first}.{second} %r0, %r1, %r2, %r3"
        for part in ("lo", "hi"):
            yield f"dp2a.{part}.{first}.{second} %r0, %r1, %r2, %r3"


def _logic() -> Iterator[str]:
    for root, kind in product(("and", "or", "xor"), _TYPES):
        yield _same(f"{root}.{kind}", kind, 2)
    for root, kind in product(("not", "cnot", "brev"), _TYPES):
        yield _same(f"{root}.{kind}", kind, 1)
    for root, kind in product(("popc", "clz", "bfind", "bfind.shiftamt"), _VALUES):
        yield _same(f"{root}.{kind}", kind, 1, "u32")
    for root, kind in product(("shl", "shr"), _VALUES):
        yield f"{root}.{kind} {_reg(kind, 0)}, {_reg(kind, 1)}, %r2"
    for side, mode, kind in product("lr", ("clamp", "wrap"), ("b32", "u32", "s32", "b64")):
        yield f"shf.{side}.{mode}.{kind} {_reg(kind, 0)}, {_reg(kind, 1)}, {_reg(kind, 2)}, %r3"
    for mode in _maybe("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield f"prmt.b32{mode} %r0, %r1, %r2, %r3"
    yield "lop3.b32 %r0, %r1, %r2, %r3, 0x80"
    for combine, result in product(("or", "and", "xor"), ("%r0", "_")):
        yield f"lop3.{combine}.b32 {result}|%p1, %r1, %r2, %r3, 0x80, %p2"
    for kind in ("b32", "u32", "s32"):
        yield f"fns.{kind} %r0, %r1, %r2, %r3"
    for mode, kind in product(("clamp", "wrap"), ("u32", "s32", "b32", "u64")):
        yield f"szext.{mode}.{kind} {_reg(kind, 0)}, {_reg(kind, 1)}, %r2"
        yield f"bmsk.{mode}.{kind} %r0, %r1, %r2"


def _float() -> Iterator[str]:
    for root, mode, ftz, limit, kind in product(("add", "sub", "mul"), _ROUND, _FTZ, _maybe("sat", "relu"), _VALUES):
        yield _same(f"{root}{mode}{ftz}{limit}.{kind}", kind, 2)
    for root, mode, ftz, limit, kind in product(
        ("fma", "mad"), _ROUND, _FTZ, _maybe("sat", "relu", "oob", "oob.relu"), _VALUES
    ):
        yield _same(f"{root}{mode}{ftz}{limit}.{kind}", kind, 3)
    for mode, ftz, sat, kind in product(_ROUND, _FTZ, _SAT, ("f16", "bf16")):
        for root in ("add", "sub", "mul"):
            yield f"{root}{mode}{ftz}{sat}.f32.{kind} %r0, %h1, %r2"
        yield f"fma{mode}{ftz}{sat}.f32.{kind} %r0, %h1, %h2, %r3"
    for how, ftz, kind in product(_maybe("rn", "rz", "rm", "rp", "approx", "full"), _FTZ, _VALUES):
        yield _same(f"div{how}{ftz}.{kind}", kind, 2)
    for root, ftz, kind in product(("abs", "neg"), _FTZ, _VALUES):
        yield _same(f"{root}{ftz}.{kind}", kind, 1)
    for root, ftz, nan, sign, relu, kind in product(
        ("min", "max"), _FTZ, _maybe("NaN"), _maybe("xorsign.abs", "abs"), _maybe("relu"), _VALUES
    ):
        yield _same(f"{root}{ftz}{nan}{sign}{relu}.{kind}", kind, 2)
        yield _same(f"{root}{ftz}{nan}{sign}{relu}.{kind}", kind, 3)
    yield "min.s16x2.relu %r0, %r1, %r2"
    yield "max.s16x2.relu %r0, %r1, %r2"
    for kind in _VALUES:
        yield _same(f"copysign.{kind}", kind, 2)
    classes = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    for what, kind in product(classes, ("f16", "f32", "f64", "bf16")):
        yield f"testp.{what}.{kind} %p0, {_reg(kind, 1)}"
    kinds = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2")
    roots = ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
    for root, mode, ftz, kind in product(roots, _maybe("approx", "rn", "rz", "rm", "rp"), _FTZ, kinds):
        yield _same(f"{root}{mode}{ftz}.{kind}", kind, 1)


def _comparison() -> Iterator[str]:
    for operator, combine, ftz, kind in product(_COMPARE, _COMBINE, _FTZ, _VALUES):
        if combine and operator not in ("eq", "lt", "ltu", "nan", "lo"):
            continue
        result = "%p0|%p1" if kind in ("f16x2", "bf16x2") else "%p0"
        third = ", %p3" if combine else ""
        yield f"setp.{operator}{combine}{ftz}.{kind} {result}, {_reg(kind, 1)}, {_reg(kind, 2)}{third}"
    results = ("u16", "s16", "u32", "s32", "f16", "bf16", "f32", "f16x2", "bf16x2", "u64", "f64", "b32")
    for operator, combine, ftz, result, kind in product(
        ("eq", "lt", "equ", "lo"), _maybe("and"), _FTZ, results, _VALUES
    ):
        if combine and operator != "lt":
            continue
        third = ", %p3" if combine else ""
        sources = f"{_reg(kind, 1)}, {_reg(kind, 2)}{third}"
        yield f"set.{operator}{combine}{ftz}.{result}.{kind} {_reg(result, 0)}, {sources}"


def _movement() -> Iterator[str]:
    for kind in [*_TYPES, "b128"]:
        yield f"mov.{kind} {_reg(kind, 0)}, {_reg(kind, 1)}"
        if kind != "pred":
            yield f"selp.{kind} {_reg(kind, 0)}, {_reg(kind, 1)}, {_reg(kind, 2)}, %p3"
            for ftz, by in product(_FTZ, ("s32", "f32", "u32")):
                yield f"slct{ftz}.{kind}.{by} {_reg(kind, 0)}, {_reg(kind, 1)}, {_reg(kind, 2)}, %r3"
    shapes = (("b8", 2, "b16"), ("b8", 4, "b32"), ("b8", 8, "b64"), ("b16", 2, "b32"), ("b16", 4, "b64"),
              ("b32", 2, "b64"),
              ("b32", 4, "b128"), ("b64", 2, "b128"))  # fmt: skip
    for item, count, whole in shapes:
        names = [_reg(item, number) for number in range(1, count + 1)]
        yield f"mov.{whole} {_reg(whole, 0)}, {{{', '.join(names)}}}"
        yield f"mov.{whole} {{{', '.join(names)}}}, {_reg(whole, 0)}"
        yield f"mov.{whole} {{{', '.join(['_', *names[1:]])}}}, {_reg(whole, 0)}"
    for to, space in product(_maybe("to"), _SPACES):
        yield f"cvta{to}.{space}.u64 %d0, %d1"
    for space in _SPACES:
        yield f"isspacep.{space} %p0, %d1"


def _conversion() -> Iterator[str]:
    modes = _maybe("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")
    for mode, ftz, sat, target, source in product(modes, _FTZ, _SAT, _NUMBERS, _NUMBERS):
        registers = [f"%{_LETTER[max(_BITS[kind], 16)]}{number}" for number, kind in enumerate((target, source))]
        yield f"cvt{mode}{ftz}{sat}.{target}.{source} {', '.join(registers)}"
    flags = _maybe("relu", "satfinite", "relu.satfinite", "satfinite.relu")
    targets = ("f16", "bf16", "tf32", "f16x2", "bf16x2")
    for mode, flag, target, source in product(_maybe("rn", "rz", "rna", "rs"), flags, targets, ("f32", "f16", "f64")):
        if target.endswith("x2"):
            random = ", %r3" if mode == ".rs" else ""
            yield f"cvt{mode}{flag}.{target}.{source} %r0, {_reg(source, 1)}, {_reg(source, 2)}{random}"
        elif flag or target == "tf32":
            yield f"cvt{mode}{flag}.{target}.{source} {_reg(target, 0)}, {_reg(source, 1)}"
    for mode, flag, target, source in product(_maybe("rn", "rz", "rp"), flags, _NARROW, ("f32", "f16x2", "bf16x2")):
        second = ", %r2" if source == "f32" else ""
        yield f"cvt{mode}{flag}.{target}.{source} {_reg(target, 0)}, %r1{second}"
    for mode, flag, target, source in product(_maybe("rn", "rz"), flags[:3], ("f16x2", "bf16x2"), _NARROW):
        yield f"cvt{mode}{flag}.{target}.{source} %r0, {_reg(source, 1)}"
    for mode, flag, kind in product(_maybe("rs", "rn"), flags, ("e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4", "e2m1x4")):
        result = "%h0" if kind == "e2m1x4" else "%r0"
        yield f"cvt{mode}{flag}.{kind}.f32 {result}, {{%r1, %r2, %r3, %r4}}, %r5"
    for kind in ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"):
        yield f"cvt.pack.sat.{kind}.s32 %r0, %r1, %r2"
        yield f"cvt.pack.sat.{kind}.s32.b32 %r0, %r1, %r2, %r3"


_HEAD = """.version 9.0
.target {arch}
.address_size 64
.visible .entry k()
{{
.reg .pred %p<8>;
.reg .b8 %b<10>;
.reg .b16 %h<8>;
.reg .b32 %r<8>;
.reg .b64 %d<8>;
.reg .b128 %q<8>;
"""


def judge(ptxas: str, arch: str, texts: list[str], folder: Path) -> list[str]:
    """The texts that ptxas accepts. It names the lines of the others, but may stop early: ask until it is silent."""
    head = _HEAD.format(arch=arch)
    first = head.count("\n") + 1
    refused: set[int] = set()
    source = folder / "k.ptx"
    while True:
        lines = ["" if number in refused else f"{text};" for number, text in enumerate(texts)]
        source.write_text(head + "\n".join(lines) + "\nret;\n}\n")
        command = [ptxas, "-arch", arch, "-O0", "-o", str(folder / "k.cubin"), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = {int(line) - first for line in re.findall(r"line (\d+); error", done.stderr)} - refused
        if not found:
            assert done.returncode == 0, done.stderr[-2000:]
            return [text for number, text in enumerate(texts) if number not in refused]
        refused |= found

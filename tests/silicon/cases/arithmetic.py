"""Every arithmetic instruction that ptxas accepts for sm_90a and the simulator knows, on edges and noise."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.silicon.cases.spelled import Operands, operands, spelled_case
from tests.silicon.model import Approximate, Bits, Case, Reported, Rule
from tests.sim.alu import spellings
from tests.sim.alu.spellings import NOT_MODELLED

__all__ = ["accepted", "cases", "rule_of", "source_type"]

ROWS = 256
GROUP = 24
"""Spellings in one kernel."""

REFUSED = Path(__file__).parent / "refused_for_sm_90a.txt"
"""Of ``accepted_by_ptxas_13_0.txt`` (sm_100a), what ptxas 13.0 refuses for sm_90a with PTX ISA 8.8."""

EXCLUDED = {
    r"(cvta|isspacep)\.": "addresses are a machine's own",
    r"mov\..*%[bq]": "registers of 8 and 128 bits come from other instructions: `memory` has them",
}
_CARRIES = re.compile(r"(addc|subc|madc)\.|\.cc\.")
_NUMBERS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "e4m3x2", "e5m2x2"}

# How far an H200 was from the simulator, which rounds the exact value once; each is within what the ISA states.
_APPROXIMATIONS: tuple[tuple[str, Rule], ...] = (
    (r"rcp\.approx\.ftz\.f64", Approximate("f64", 2.0**32, "rcp.approx.ftz.f64: the last of its 20 bits")),
    (r"rsqrt\.approx\.ftz\.f64", Approximate("f64", 2.0**32, "rsqrt.approx.ftz.f64: the last of its 20 bits")),
    (r"rsqrt\.approx\.f64", Approximate("f64", 1, "rsqrt.approx.f64")),
    (r"rcp\.approx", Approximate("f32", 1, "rcp.approx.f32: 1 ulp")),
    (r"r?sqrt\.approx", Approximate("f32", 1, "sqrt.approx 2^-23, rsqrt.approx 2^-22.9, relative")),
    (r"div\.(full|approx)", Approximate("f32", 1, "div.full and div.approx: 2 ulp in the stated range")),
    (r"ex2\.approx\.f16", Approximate("f16", 1, "ex2.approx.f16: 2^-9.9 relative")),
    (r"ex2\.approx\.ftz\.bf16", Approximate("bf16", 1, "ex2.approx.bf16: 2^-7 relative")),
    (r"ex2\.approx", Approximate("f32", 1, "ex2.approx.f32: 2 ulp")),
    (r"lg2\.approx", Approximate("f32", 2, "lg2.approx: 2^-22 absolute near 1, relative elsewhere", 2.0**-23)),
    (r"tanh\.approx\.f16", Approximate("f16", 1, "tanh.approx.f16: 2^-10.987 absolute")),
    (r"tanh\.approx\.bf16", Approximate("bf16", 1, "tanh.approx.bf16: 2^-8 relative")),
    (r"tanh\.approx", Approximate("f32", 128, "tanh.approx.f32: 2^-11 relative")),
    (r"(sin|cos)\.approx", Reported("sin and cos are bounded near zero only")),
)


def accepted() -> list[str]:
    """What ptxas accepts for sm_90a and the simulator is to know."""
    whole = (Path(spellings.__file__).parent / "accepted_by_ptxas_13_0.txt").read_text().splitlines()
    refused = set(REFUSED.read_text().splitlines())
    excluded = [*NOT_MODELLED, *(f"({pattern}).*" for pattern in EXCLUDED)]
    return [text for text in whole if text not in refused and not any(re.fullmatch(p, text) for p in excluded)]


def source_type(text: str) -> str:
    """The type that decides which operands are worth trying."""
    kinds = [part for part in text.split(maxsplit=1)[0].split(".") if part in _NUMBERS]
    last = text.split(maxsplit=1)[0].rsplit(".", maxsplit=1)[-1]
    if text.startswith("slct"):
        return "f32" if last == "f32" else "int"
    return last if last in kinds else "int"


def rule_of(text: str) -> Rule:
    """What the ISA says of the result."""
    return next((rule for pattern, rule in _APPROXIMATIONS if re.match(pattern, text)), Bits())


def cases() -> Iterator[Case]:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for text in accepted():
        root = text.split(".")[0]
        if _CARRIES.search(text):
            root = "subtract-with-carry" if text.startswith("sub") else "carry"
        groups[root, source_type(text)].append(text)
    for number, ((root, kind), texts) in enumerate(groups.items()):
        given = operands(kind, ROWS, number)
        if kind == "int" and root in ("div", "rem"):
            given = _divisible(given)
        for at in range(0, len(texts), GROUP):
            part = texts[at : at + GROUP]
            label = f"arithmetic.{root}.{kind}" + (f".{at // GROUP}" if len(texts) > GROUP else "")
            before, after = _carry(root)
            yield spelled_case(
                label, [(text, rule_of(text)) for text in part], given, block=ROWS, before=before, after=after
            )
    yield from _nans()


def _nans() -> Iterator[Case]:
    """Which NaN comes of which: one operand, two, three, and invalid operations. The ISA leaves it open.

    The simulator gives an H200's.
    """
    nans = [0xFFF8_0000_1234_5678, 0x7FF0_0000_0000_0001, 0x7FFC_BA98_7654_3210, 0xFFF7_6543_21FE_DCBA]
    values = [*nans, 0x7FF << 52, 0xFFF << 52, 0, 0x3FF << 52]
    count = len(values)
    number = np.arange(count**3)
    table = np.array(values, np.uint64)
    d = np.zeros((6, count**3), np.uint64)
    d[1], d[2], d[3] = table[number % count], table[number // count % count], table[number // count**2]
    zeros = np.zeros((6, count**3), np.uint64)
    given = Operands(zeros.astype(np.uint16), zeros.astype(np.uint32), d, zeros[0].astype(np.uint32))
    texts = [f"{root}.f64 %d0, %d1, %d2" for root in ("add", "sub", "mul", "div.rn", "min", "max")]
    texts += ["fma.rn.f64 %d0, %d1, %d2, %d3"]
    texts += [f"{root}.f64 %d0, %d1" for root in ("abs", "neg", "rcp.rn", "sqrt.rn", "rsqrt.approx", "cvt.rni.f64")]
    texts += ["cvt.rn.f32.f64 %r0, %d1", "cvt.rn.f16.f64 %h0, %d1", "cvt.rn.bf16.f64 %h0, %d1"]
    yield spelled_case("arithmetic.nan.f64", [(text, Bits()) for text in texts], given, block=256)


def _carry(root: str) -> tuple[str, str]:
    """The flag goes in from a comparison with what every row holds, and comes out as a number."""
    if root == "carry":
        return "add.cc.u32 %r9, %r4, %r5;", "addc.u32 %r9, 0, 0;"
    if root == "subtract-with-carry":
        return "sub.cc.u32 %r9, %r4, %r5;", "subc.u32 %r9, 0, 0;"
    return "", ""


def _divisible(given: Operands) -> Operands:
    """Integer division by zero, and of the least number by -1, are not defined."""
    for table in (given.h, given.r, given.d):
        table[2] |= table.dtype.type(1)
        table[2][table[2] == np.iinfo(table.dtype).max] = 3
    return given

"""Runs one arithmetic instruction on register values, without the block compiler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_nvfp4.sim.alu.table import LOWERINGS
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.lower.compiler import longest_prefix
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import (
    Guard,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Vector,
)

_WIDTHS = {"p": 1, "b": 8, "h": 16, "r": 32, "d": 64, "q": 128}
"""Registers by the first letter of their name: p0 predicate, b0 8, h0 16, r0 32, d0 64, q0 128 bits."""


class Reports:
    """What ``launch.report`` was told, and what was counted."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.counters: Counter[str] = Counter()

    def report(self, kind: str, message: str, *, hint: str = "") -> None:
        assert message
        assert hint
        self.kinds.append(kind)


class FakeWarp:
    """The part of a warp that arithmetic uses."""

    def __init__(self, rank: int = 0) -> None:
        self.units: dict[type, Any] = {}
        self.cta = SimpleNamespace(rank=rank, launch=Reports())

    def unit(self, kind: type) -> Any:
        if kind not in self.units:
            self.units[kind] = kind(self)
        return self.units[kind]


class Case:
    """A register file by name and a warp; ``run`` executes PTX text on it."""

    def __init__(self, rank: int = 0, **values: Any) -> None:
        self.slots: dict[str, int] = {}
        self.values: dict[str, Any] = dict(values)
        self.warp = FakeWarp(rank)

    def register(self, name: str, *, negated: bool = False) -> Register:
        slot = self.slots.setdefault(name, len(self.slots))
        return Register(f"%{name}", slot, _WIDTHS[name[0]], negated)

    def operand(self, text: str) -> Operand:
        text = text.strip()
        if text == "_":
            return Sink()
        if text.startswith("{"):
            return Vector(tuple(self.operand(item) for item in text.strip("{}").split(",")))
        if "|" in text:
            first, second = (self.operand(part) for part in text.split("|"))
            assert isinstance(first, (Register, Sink))
            assert isinstance(second, (Register, Sink))
            return Pair(first, second)
        if text.startswith("!"):
            return self.register(text[1:], negated=True)
        if text.startswith("%"):
            return Special(text[1:])
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return Immediate(int(text[2:], 16), 32)
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
            return Immediate(int(text[2:], 16), 64)
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
            return Immediate(int(text, 0))
        return self.register(text)

    def instruction(self, text: str) -> Instruction:
        guard = None
        if text.startswith("@"):
            condition, text = text[1:].split(None, 1)
            guard = Guard(self.register(condition.lstrip("!")), condition.startswith("!"))
        opcode, _, rest = text.strip().partition(" ")
        operands = re.findall(r"\{[^}]*\}|[^,{}]+", rest)
        parts = tuple(opcode.split("."))
        return Instruction(opcode, parts, tuple(self.operand(o) for o in operands if o.strip()), guard, 7, 1, text)

    def lower(self, text: str) -> Emitter:
        ins = self.instruction(text)
        e = Emitter(special=lambda name: (f"special[{name!r}]", 32), symbol=lambda _: "1040", parameter=lambda _: None)
        e.globals["special"] = {"laneid": np.arange(32, dtype=np.uint32), "ctaid.x": 5}
        prefix = longest_prefix(LOWERINGS, ins.parts)
        assert prefix is not None, text
        e.begin(ins)
        LOWERINGS[prefix](ins, e)
        e.end()
        e.packs.need_all()
        return e

    def run(self, text: str, mask: int = FULL) -> None:
        block, names = compiled(text)
        given = [self.values.get(name) for name in names]
        frozen = [value.copy() if isinstance(value, np.ndarray) else value for value in given]
        with np.errstate(all="ignore"):
            written = block(self.warp, mask, *given)
        for before, after in zip(frozen, given, strict=True):
            assert np.array_equal(before, after), f"{text} wrote to an operand in place"
        for name, value in written.items():
            check(value, _WIDTHS[name[0]], text)
            self.values[name] = value


@cache
def compiled(text: str) -> tuple[Callable[..., dict[str, Any]], tuple[str, ...]]:
    """An instruction as a function of the warp, the mask and its registers, and the registers' names."""
    case = Case()
    e = case.lower(text)
    names = tuple(case.slots)
    source = ["def block(w, m" + "".join(f", v{slot}" for slot in range(len(names))) + "):", *e.lines]
    source.append("    return {" + ", ".join(f"{names[slot]!r}: v{slot}" for slot in e.written) + "}")
    scope = dict(e.globals)
    exec("\n".join(source), scope)
    return scope["block"], names


def check(value: Any, bits: int, text: str) -> None:
    """The shape and type that ``lanes`` wants of a register value."""
    if bits == 1:
        assert type(value) is bool or (value.dtype == np.bool_ and value.shape == (32,)), (text, value)
    elif isinstance(value, np.ndarray):
        kind = np.dtype(object) if bits == 128 else np.dtype(f"u{bits // 8}")
        assert value.dtype == kind, (text, value.dtype)
        assert value.shape == (32,), (text, value.shape)
    else:
        assert type(value) is int, (text, type(value))
        assert 0 <= value < 1 << bits, (text, value)


def run(text: str, **values: Any) -> Any:
    """The first operand after one instruction; a tuple of the items of a pair or vector."""
    case = Case(**values)
    case.run(text)
    first = case.instruction(text).operands[0]
    if isinstance(first, Pair):
        return tuple(case.values[r.name[1:]] for r in (first.first, first.second) if isinstance(r, Register))
    if isinstance(first, Vector):
        return tuple(case.values[r.name[1:]] for r in first.items if isinstance(r, Register))
    assert isinstance(first, Register)
    return case.values[first.name[1:]]


_DTYPES = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def every_way(text: str, lanes: dict[str, list[int]]) -> list[Any]:
    """The results by lane of an instruction on up to 32 lanes of operands, after checking all paths against each other.

    Array operands, each lane as ints, and every mix of an int with arrays must agree.
    """
    names = list(lanes)
    count = len(lanes[names[0]])
    assert count <= 32
    padded = {name: list(values) + [values[0]] * (32 - count) for name, values in lanes.items()}
    arrays = {name: np.array(values, _DTYPES[_WIDTHS[name[0]]]) for name, values in padded.items()}
    together = run(text, **arrays)
    result = [_lane(together, lane) for lane in range(count)]
    for lane in range(count):
        ints = {name: _plain(values[lane], name) for name, values in padded.items()}
        alone = run(text, **ints)
        assert alone == result[lane], (text, ints, alone, result[lane])
    if len(names) > 1:
        for name in names:
            for lane in range(0, count, max(1, count // 4)):
                mixed = {**arrays, name: _plain(padded[name][lane], name)}
                assert _lane(run(text, **mixed), lane) == result[lane], (text, name, lane)
    return result


def _plain(value: int, name: str) -> int | bool:
    return bool(value) if name[0] == "p" else int(value)


def _lane(value: Any, lane: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_lane(item, lane) for item in value)
    if isinstance(value, np.ndarray):
        return value[lane] if value.dtype == object else value[lane].item()
    return value

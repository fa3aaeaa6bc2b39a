"""Describes its configuration with dataclasses, enums, named tuples and protocols."""

import collections
import dataclasses
import enum
import typing

from honest_gemm import compute

Pair = collections.namedtuple("Pair", "a b")


class Mode(enum.Flag):
    """Ways."""

    FAST = enum.auto()
    SLOW = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Plan:
    """A plan."""

    mode: Mode = Mode.FAST
    pair: Pair = Pair(1, 2)


class Tuner(typing.Protocol):
    """Tunes."""

    def tune(self) -> Plan: ...


assert dataclasses.replace(Plan(), mode=Mode.SLOW) != Plan()

custom_kernel = compute

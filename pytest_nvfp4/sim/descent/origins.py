"""What bytes of device memory descend from, as summaries that are merged wherever bytes may mix."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, TypeVar

from pytest_nvfp4.driver.user_line import UserLine

_T = TypeVar("_T")
ANY_SIZE = 1 << 62
"""Unit of what no operator of torch can have packed: constants, and what kernels wrote."""
_MOST = 16
"""Requests of one kind that a summary names. Whether there is any, which decides, is not limited."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote bytes.

    Attributes:
        kind: A launched kernel, an operator of torch on the device, or a copy from the host.
        name: Symbol of the kernel, ``torch's mm``, ``cudaMemcpy``.
        line: The user's line that requested it, as the kernel's process claims.
        number: Number of the launch in the session; -1 for all else.
    """

    kind: Literal["launch", "operator", "copy"]
    name: str
    line: UserLine | None = None
    number: int = -1


@dataclass(frozen=True, slots=True)
class HostRead:
    """A read by the host of bytes that descend from inputs."""

    what: str
    line: UserLine | None = None


@dataclass(frozen=True, slots=True)
class HostWrite:
    """What the host sent after such a read: bytes, scalars, parameters or code; ``at`` is the number of the request."""

    what: str
    line: UserLine | None
    after: HostRead
    at: int


@dataclass(frozen=True, slots=True)
class Origins:
    """What bytes descend from.

    Attributes:
        inputs: Whether they descend from inputs.
        unit: Largest size of an element, in bytes, that surely holds no more than one element of an input; 0 if
            there is none.
        combined: Whether operators of torch made them as a function of two elements (``effects.Effect.COMBINES``).
        computed: The operators of torch that computed something from inputs.
        host: What the host sent after it had read bytes that descend from inputs.
        launches: Numbers of the launches that they passed through.
        laid: Whether a kernel wrote them after the last conversion, so that an element may hold several of any kind.
        conversions: Conversions and look-ups of such elements that they passed through in this call, one after another.
    """

    inputs: bool = False
    unit: int = ANY_SIZE
    combined: bool = False
    computed: frozenset[Writer] = frozenset()
    host: frozenset[HostWrite] = frozenset()
    launches: frozenset[int] = frozenset()
    laid: bool = False
    conversions: int = 0

    def __or__(self, other: Origins) -> Origins:
        """Return what a mixture of both descends from."""
        if self is other or other is NOTHING:
            return self
        if self is NOTHING:
            return other
        return Origins(
            inputs=self.inputs or other.inputs,
            unit=min(self.unit, other.unit),
            combined=self.combined or other.combined,
            computed=_bounded(self.computed | other.computed, key=repr),
            host=_bounded(self.host | other.host, key=lambda write: -write.at),
            launches=self.launches | other.launches,
            laid=self.laid or other.laid,
            conversions=max(self.conversions, other.conversions),
        )


NOTHING = Origins()
"""Origins of memory that nothing was written to, and of constants."""


def union(many: Iterable[Origins]) -> Origins:
    """Return what a mixture descends from."""
    return reduce(Origins.__or__, many, NOTHING)


def _bounded(items: frozenset[_T], *, key: Callable[[_T], Any]) -> frozenset[_T]:
    """Return at most ``_MOST`` of the items, those with the lowest keys."""
    return items if len(items) <= _MOST else frozenset(sorted(items, key=key)[:_MOST])


@dataclass(frozen=True, slots=True)
class Held:
    """What a range of memory holds: its origins, and who may have written any of it last."""

    origins: Origins = NOTHING
    writers: frozenset[Writer] = field(default_factory=frozenset)

    def __or__(self, other: Held) -> Held:
        """Return what it may hold after a write of some of its bytes."""
        return Held(self.origins | other.origins, _bounded(self.writers | other.writers, key=repr))

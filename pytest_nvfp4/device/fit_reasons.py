"""Reasons of a fitted problem: what it reaches of a kernel's rings."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from pytest_nvfp4.device.ring_counts import REFILLS, name_of, rings_of, writing_launch
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.device.result import SimulatedCall

_SHOWN = 6
"""Largest number of rings that are listed."""


def reached(
    call: SimulatedCall,
    *,
    sms: int | None,
    per_k: Container[object],
    of_k: Container[object] | None = None,
    persistent: bool = False,
) -> Iterator[str]:
    """Yield the rings that are refilled, then those that are not, with the reason.

    Args:
        call: A call of the kernel.
        sms: SMs of the simulated device; None for those of the product.
        per_k: The rings (``rings_of``) that go round with k.
        of_k: Those that go round with an official k (``official_path.of_k``), if the call has such a k.
        persistent: Whether it is that of a persistent kernel on the product's device, where few CTAs have two tiles.
    """
    refilled: list[str] = []
    other: list[str] = []
    for key, ring in rings_of(call).items():
        name = f"{name_of(ring)} ({plural(ring.stages, 'stage')})"
        phases = plural(ring.iterations, "phase")
        if ring.refills >= REFILLS:
            refilled.append(f"{name} {ring.refills} times")
        elif not ring.iterations:
            other.append(f"nothing completes a phase of {name}")
        elif of_k is not None and key in of_k:
            other.append(f"{name} completes {phases}: no official k that is tried refills it")
        elif of_k is None and key in per_k:
            other.append(f"{name} completes {phases}: a larger k is not tried")
        elif sms is not None:
            other.append(f"{name} completes {phases}: neither k nor more tiles add any")
        elif persistent:
            other.append(f"{name} completes {phases}, whatever k is: more tiles for a CTA are not tried")
        else:
            other.append(f"{name} completes {phases} a tile, whatever k is, and a CTA has 1 tile")
    if refilled:
        more = f" and {len(refilled) - _SHOWN} more" if len(refilled) > _SHOWN else ""
        yield f"every stage is refilled at {', '.join(refilled[:_SHOWN])}{more}"
    writing = writing_launch(call)
    if sms is not None and writing is not None:
        took = sum(launch.counters.get("clusters.cancelled", 0) for launch in call.launches)
        if took:
            yield f"{plural(writing.writers or 0, 'CTA')} take over {took} (cluster launch control)"
        else:
            yield f"{plural(writing.ctas, 'CTA')} share all tiles (persistent kernel)"
    yield from other[:_SHOWN]
    if not refilled and not other:
        yield "the kernel has no rings of mbarriers"

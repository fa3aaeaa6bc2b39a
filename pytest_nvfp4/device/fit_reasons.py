"""Reasons of a fitted problem: what it reaches of a kernel's rings."""

from __future__ import annotations

from collections import Counter
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
    refills: Counter[tuple[str, str]] = Counter()
    others: Counter[tuple[str, str]] = Counter()
    for key, ring in rings_of(call).items():
        name, size = f"{name_of(ring)} (", f"{plural(ring.stages, 'stage')})"
        phases = plural(ring.iterations, "phase")
        if ring.refills >= REFILLS:
            refills[name, f"{size} {ring.refills} times"] += 1
        elif not ring.iterations:
            others[f"nothing completes a phase of {name}", size] += 1
        elif of_k is not None and key in of_k:
            others[name, f"{size} completes {phases}: no official k that is tried refills it"] += 1
        elif of_k is None and key in per_k:
            others[name, f"{size} completes {phases}: a larger k is not tried"] += 1
        elif sms is not None:
            others[name, f"{size} completes {phases}: neither k nor more tiles add any"] += 1
        elif persistent:
            others[name, f"{size} completes {phases}, whatever k is: more tiles for a CTA are not tried"] += 1
        else:
            others[name, f"{size} completes {phases} a tile, whatever k is, and a CTA has 1 tile"] += 1
    refilled, other = _listed(refills), _listed(others)
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


def _listed(rings: Counter[tuple[str, str]]) -> list[str]:
    """Return one text for rings of one line that differ in nothing, such as the operands of a loop of Triton."""
    return [f"{name}{f'{count} rings of ' if count > 1 else ''}{rest}" for (name, rest), count in rings.items()]

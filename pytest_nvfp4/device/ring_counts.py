"""Counts of a simulated call: refills of each ring of mbarriers, and tiles of its clusters."""

from __future__ import annotations

from pytest_nvfp4.device.result import SimulatedCall, SimulatedLaunch, SimulatedRing
from pytest_nvfp4.text import plural

REFILLS = 2
"""Number of times that each stage of a ring is filled again: the second time it returns to its first parity."""


def not_refilled(call: SimulatedCall) -> list[str]:
    """Return the rings of a call with a stage that is not filled again twice, though the ring has several stages."""
    return [
        f"{name_of(ring)} ({plural(ring.stages, 'stage')}, {plural(ring.iterations, 'phase')})"
        for ring in rings_of(call).values()
        if ring.stages > 1 and ring.iterations and ring.refills < REFILLS
    ]


def takes_over(launch: SimulatedLaunch) -> bool:
    """Return whether CTAs ask for the work of others (cluster launch control)."""
    return bool(launch.counters.get("clc.requests"))


def tiles_of_a_cta(call: SimulatedCall) -> float:
    """Return the tiles that a CTA executed in a call with few: more than one only if it took over another's."""
    launch = writing_launch(call)
    if launch is None or not launch.writers or not takes_over(launch):
        return 1.0
    return launch.ctas / launch.writers


def clusters_of_tiles(call: SimulatedCall) -> int:
    """Return the number of clusters that the tiles of a call need."""
    launch = writing_launch(call)
    if launch is None:
        return 0
    needed = launch.ctas if takes_over(launch) else launch.writers or 0
    return -(-needed * launch.clusters // launch.ctas)


def writing_launch(call: SimulatedCall) -> SimulatedLaunch | None:
    """Return the launch whose CTAs wrote most of C."""
    return max(call.launches, key=lambda launch: launch.writers or 0, default=None)


def rings_of(call: SimulatedCall) -> dict[object, SimulatedRing]:
    """Return the rings of all launches by kernel, statement and address: each where it was refilled most."""
    most: dict[object, SimulatedRing] = {}
    for launch in call.launches:
        for ring in launch.rings:
            key = launch.kernel, ring.made, ring.barriers
            if key not in most or (ring.refills, ring.iterations) > (most[key].refills, most[key].iterations):
                most[key] = ring
    return most


def name_of(ring: SimulatedRing) -> str:
    """Return the line of the initialisation, such as ``k.py:12 called at :80``, or the place in shared memory."""
    return ring.made.partition(" `")[0] if ring.made else f"the mbarriers at byte {ring.barriers[0]}"

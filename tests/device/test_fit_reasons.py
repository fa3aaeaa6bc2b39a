from __future__ import annotations

from pytest_nvfp4.device.fit_reasons import reached
from pytest_nvfp4.device.result import SimulatedCall, SimulatedLaunch, SimulatedRing


def _ring(line: int, at: int, *phases: int) -> SimulatedRing:
    barriers = tuple(range(at, at + 8 * len(phases), 8))
    made = f"k.py:{line} `for k in tl.range(...)`"
    return SimulatedRing(made=made, waiters=(), cta=0, barriers=barriers, count=1, bytes=0, phases=phases)


def test_rings_of_one_statement_are_told_once() -> None:
    rings = (
        *(_ring(20, at, 3, 3) for at in (0, 64, 128)),
        _ring(20, 192, 4, 4),
        _ring(30, 256, 3),
        *(_ring(40, at, 1, 1) for at in (320, 384)),
    )
    launch = SimulatedLaunch(
        kernel="k", grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), shared_bytes=0, ctas_per_sm=1, counters={},
        writers=1, rings=rings,
    )  # fmt: skip
    call = SimulatedCall(call=0, case=0, model="", sms=148, launches=(launch,), outputs=())
    assert list(reached(call, sms=None, per_k=())) == [
        "every stage is refilled at k.py:20 (3 rings of 2 stages) 2 times, k.py:20 (2 stages) 3 times, "
        "k.py:30 (1 stage) 2 times",
        "k.py:40 (2 rings of 2 stages) completes 2 phases a tile, whatever k is, and a CTA has 1 tile",
    ]

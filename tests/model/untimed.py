"""Execution of a recording without times: warps and operations run in any order that the recording allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from pytest_nvfp4.model.recording import Does, Program, Unit

_IN_ORDER = (Unit.TENSOR, Unit.TMEM_COPY, Unit.COMMIT)


class Stuck(AssertionError):
    """Warps that wait forever: their CTA, their number, and the index of the event."""


def execute(program: Program) -> Counter[int]:
    """Execute the program of a cluster, and return the signals that its phases have received.

    Operations complete at their issue, except for those of a pipe behind others, which are complete too by then.

    Raises:
        Stuck: A warp waits for a phase that never receives its signals.
    """
    received: Counter[int] = Counter()
    places = [0] * len(program.warps)

    def signal(listed: int) -> None:
        if listed >= 0:
            received.update(program.signals[listed])

    moved = True
    while moved:
        moved = False
        for number, warp in enumerate(program.warps):
            events = warp.events
            while places[number] < len(events):
                event = events[places[number]]
                does, item = int(event["does"]), int(event["item"])
                if does == Does.WAIT and received[item] < program.phases[item]:
                    break
                if does == Does.SIGNAL:
                    received[item] += int(event["count"])
                elif does == Does.ISSUE:
                    operation = program.operations[item]
                    signal(int(operation["read"]))
                    signal(int(operation["done"]))
                places[number] += 1
                moved = True
    waiting = [
        (warp.cta, warp.index, place)
        for warp, place in zip(program.warps, places, strict=True)
        if place < len(warp.events)
    ]
    if waiting:
        raise Stuck(str(waiting))
    return received


def without_event(program: Program, warp: int, event: int) -> Program:
    """Return a program without one event of a warp."""
    changed = replace(program.warps[warp], events=np.delete(program.warps[warp].events, event))
    return replace(program, warps=(*program.warps[:warp], changed, *program.warps[warp + 1 :]))

"""What happens when a warp executes a mark (``sim.ptx.marks``): the timeline and the monitor receive it."""

from __future__ import annotations

from pytest_nvfp4.sim.run.warp import Warp


def marked(w: Warp, at: int) -> None:
    """Report the mark at an instruction."""
    launch = w.cta.launch
    if (trace := launch.machine.trace) is not None:
        trace.marked(w, launch.program.marks[at])
    if (monitor := launch.machine.monitor) is not None:
        monitor.marked(w, at)

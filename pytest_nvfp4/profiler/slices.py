"""Timelines of regions as slices of a trace: a CTA is a process, a warp a track."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_nvfp4.profiler.perfetto_trace import Slice
from pytest_nvfp4.profiler.spans import Timeline


def slices_of(timelines: Sequence[Timeline], *, ctas: int) -> Iterator[Slice]:
    """Yield the regions of the first CTAs of each kernel; several timelines are told apart by their source.

    A step of the simulator is shown as a nanosecond.
    """
    for timeline in timelines:
        prefix = f"{timeline.source}: " if len(timelines) > 1 else ""
        kernels = list(dict.fromkeys(span.kernel for span in timeline.spans))
        shown = [span for span in timeline.spans if span.cta < ctas]
        for span in sorted(shown, key=lambda span: (kernels.index(span.kernel), span.cta, span.warp, span.begin)):
            name = f"{span.kernel[:60]}, " if len(kernels) > 1 else ""
            details: dict[str, str | int | float] = {"value": span.value, "depth": span.depth}
            if span.sm >= 0:
                details["SM"] = span.sm
            yield Slice(f"{prefix}{name}CTA {span.cta}", f"warp {span.warp}", span.name, span.begin, span.end, details)

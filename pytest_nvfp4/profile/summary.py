"""A profile in one line: the tool, and what is known of the kernel that took longest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_nvfp4.profile.metrics import BY_NAME
from pytest_nvfp4.profile.result import Profile, ProfiledLaunch
from pytest_nvfp4.text import clip

_SHOWN: Final = (
    *("duration", "sm_throughput", "memory_throughput", "dram_throughput", "tensor_pipe", "l2_hit_rate"),
    *("achieved_occupancy", "registers"),
)
_NAME: Final = 60


def one_line(profile: Profile) -> str:
    """Return a profile in one line; metrics that are unknown are left out."""
    tool = profile.tool
    if tool is None:
        return f"not profiled: {profile.attempts[-1].because if profile.attempts else 'no tool was tried'}"
    tried = [f"{run.tool} {run.state}" for run in profile.attempts if run.state != "ran"]
    after = f" (after {', '.join(tried)})" if tried else ""
    if not profile.launches:
        return f"{tool.tool}{after}: no launch"
    longest = max(profile.launches, key=lambda launch: (launch.value("duration") or 0.0) * launch.instances)
    more = len(profile.launches) - 1
    others = f", and {more} more" if more else ""
    return f"{tool.tool}{after}: {clip(longest.name, _NAME)}: {', '.join(_figures(longest)) or 'nothing known'}{others}"


def _figures(launch: ProfiledLaunch) -> Iterator[str]:
    for name in _SHOWN:
        metric = launch.metric(name)
        if metric.value is not None:
            title = "" if name == "duration" else f"{BY_NAME[name].title} "
            yield f"{title}{metric.value:.4g} {metric.unit}".rstrip()

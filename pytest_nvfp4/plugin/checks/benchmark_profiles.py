"""``--nvfp4-profile``: each benchmark is profiled too, after it was timed; its times are those without a profiler."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_nvfp4.plugin.checks.kernel import job_case
from pytest_nvfp4.plugin.failure import CheckFailure, TimingWarning
from pytest_nvfp4.text import printed

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.profile.result import Profile

MODES = ("ncu", "nsys", "torch")
PROPERTY = "nvfp4_profile"
"""Name of the property of an item, in JUnit files and other reports, with the profile as JSON."""
_LEFT_OUT: Final[dict[str, Any]] = {
    "artifacts": True,
    "launches": {"__all__": {"counters": True, "sections": True, "texts": True}},
}
"""The thousands of raw counters, which a report has no room for; `nvfp4 profile --json` has them."""


def add_option(group: pytest.OptionGroup) -> None:
    """Declare the option."""
    group.addoption(
        "--nvfp4-profile",
        choices=MODES,
        metavar="MODE",
        help="profile each benchmark too, after it was timed: ncu, nsys or torch (`nvfp4 profile` has more options)",
    )


@dataclass(slots=True)
class BenchmarkProfiles:
    """Profiles benchmarks, and shows the profiles at the end of the run.

    Attributes:
        mode: The tool; None to profile nothing.
        made: The profiles by node id.
    """

    mode: str | None
    made: dict[str, Profile] = field(default_factory=dict)

    def add(
        self,
        item: pytest.Item,
        device: Device,
        spec: KernelSpec,
        problem: Problem,
        *,
        base: Path,
        folder: Path,
        timeout_s: float,
    ) -> None:
        """Profile a benchmark that was timed.

        Raises:
            CheckFailure: What the kernel computed below the profiler is wrong.
        """
        if self.mode is None:
            return
        from pytest_nvfp4.device.job import Profiling
        from pytest_nvfp4.profile.measure import Request, profile_kernel

        settings = Profiling(mode=self.mode)  # type: ignore[arg-type]
        request = Request(spec.main, spec, base, job_case(problem), settings, timeout_s)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="profile-", dir=folder) as name:
            job, out = Path(name) / "job", Path(name) / "out"
            job.mkdir()
            out.mkdir()
            profile = profile_kernel(request, device, folder=job, out=out)
        self.made[item.nodeid] = profile
        shown = profile.model_dump_json(exclude=_LEFT_OUT, exclude_none=True)
        item.user_properties.append((PROPERTY, shown))
        verdict = profile.verdict
        if profile.tool is None:
            because = profile.attempts[-1].because if profile.attempts else verdict and verdict.because
            item.warn(TimingWarning(printed(f"not profiled: {because or 'no tool ran'}")))
        elif verdict is not None and verdict.status in ("failed", "cheated"):
            raise CheckFailure(f"wrong below {profile.tool.tool}: {verdict.because}", file=str(base / spec.main))

    def summarise(self, terminal: Any) -> None:
        """Write the profiles."""
        if not self.made:
            return
        from pytest_nvfp4.profile.summary import one_line

        terminal.write_sep("-", "nvfp4: profiles")
        for nodeid, profile in self.made.items():
            terminal.write_line(printed(f"{nodeid}: {one_line(profile)}"))

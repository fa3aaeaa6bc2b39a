"""Estimate of a session before anything is sent: jobs, calls, seconds and dollars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_nvfp4.device.remote.base import Batch, Cost, dollars
from pytest_nvfp4.device.remote.cache import RemoteResultCache
from pytest_nvfp4.device.remote.request import BatchRequest
from pytest_nvfp4.device.remote.run_times import RunTimes
from pytest_nvfp4.text import plural


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a session would do.

    Attributes:
        jobs: Jobs that would be sent.
        calls: Calls that would carry them.
        cached: Calls whose results an earlier session stored, and that are not sent.
        stored: Calls whose results an earlier session stored, and that are sent because reuse was not requested.
        same_s: Seconds of calls that ran before, possibly with another version of the kernel.
        similar_s: Seconds of calls whose time is that of other calls of the same kind.
        unknown: Calls of which nothing similar has run.
        longest_s: Sum of the deadlines of the unknown calls.
        containers: Containers that may be used at once.
        cost: Price of one container, and the time that it stays up afterwards.
    """

    jobs: int
    calls: int
    cached: int
    stored: int
    same_s: float
    similar_s: float
    unknown: int
    longest_s: float
    containers: int
    cost: Cost

    @property
    def seconds(self) -> float:
        """Seconds of the calls whose time is known, and the idle time afterwards."""
        used = min(self.containers, self.calls)
        return self.same_s + self.similar_s + used * self.cost.idle_s

    def lines(self) -> list[str]:
        """Return the estimate as lines of text."""
        reuse = f"; {plural(self.cached, 'more call has a stored result', 'more calls have stored results')}"
        stored = f"; {self.stored} of them have stored results, which --nvfp4-resume uses"
        lines = [
            f"{plural(self.jobs, 'job')} in {plural(self.calls, 'call')}, {self.containers} at once"
            + (reuse if self.cached else "")
            + (stored if self.stored else "")
        ]
        if not self.calls:
            return lines
        sources = [
            (self.same_s, "as these calls took before"),
            (self.similar_s, "as other calls of their kind took"),
            (self.seconds - self.same_s - self.similar_s, "idle at the end"),
        ]
        known = ", ".join(f"{seconds:.0f} s {source}" for seconds, source in sources if seconds >= 0.5)
        if self.unknown < self.calls:
            lines.append(
                f"about {self.seconds:.0f} s of containers{self._money(self.seconds)} ({known or 'under 1 s'})"
            )
        if self.unknown:
            lines.append(
                f"no time is known of {plural(self.unknown, 'call')}: at most {self.longest_s:.0f} s by their "
                f"deadlines{self._money(self.longest_s)}"
            )
        lines.append("the start of a container and the build of its image are extra")
        return lines

    def _money(self, seconds: float) -> str:
        usd = self.cost.usd_per_hour
        if usd is None:
            return ", at an unknown price (--nvfp4-gpu-price)"
        return f", {dollars(seconds * usd / 3600)} at {dollars(usd)} an hour"


def estimate(
    batches: Iterable[Batch], *, cache: RemoteResultCache, times: RunTimes, reuse: bool, containers: int, cost: Cost
) -> Estimate:
    """Estimate the session that sends these batches. Contacts nothing."""
    jobs = calls = cached = stored = unknown = 0
    same_s = similar_s = longest_s = 0.0
    for batch in batches:
        request = BatchRequest(batch)
        hits = cache.get(batch)
        if len(hits) == len(batch.jobs):
            cached, stored = cached + reuse, stored + (not reuse)
            if reuse:
                continue
        if reuse and hits:
            request.use_cached(hits)
        sent = request.remaining
        jobs, calls = jobs + len(sent.jobs), calls + 1
        if (seconds := times.same(sent)) is not None:
            same_s += seconds
        elif (seconds := times.similar(sent)) is not None:
            similar_s += seconds
        else:
            unknown, longest_s = unknown + 1, longest_s + sent.deadline_s
    return Estimate(jobs, calls, cached, stored, same_s, similar_s, unknown, longest_s, containers, cost)

"""Regions that the author named, in modelled time: the marks of replays as the timeline that a GPU's records give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay import Passed, Replay
from pytest_nvfp4.profiler.records import Kind
from pytest_nvfp4.profiler.spans import Moment, Pairing, Span, Timeline
from pytest_nvfp4.sim.ptx.marks import Mark

_KINDS = {"begin": Kind.BEGIN, "end": Kind.END, "mark": Kind.MARK}


def modelled_regions(recordings: Sequence[Recording], replays: Sequence[Replay], *, source: str) -> Timeline:
    """Return the regions of the launches of a call; times are ns since the start of the first launch."""
    pairing = Pairing()
    spans: list[Span] = []
    problems = []
    for recording, done in zip(recordings, replays, strict=True):
        warps: dict[tuple[int, int, int], list[Passed]] = {}
        for each in done.marks:
            warps.setdefault((each.cluster, each.cta, each.warp), []).append(each)
        for (cluster, rank, warp), passed in sorted(warps.items()):
            spans += pairing.spans(
                moments_of(recording.marks, [(each.mark, each.at_ns) for each in passed]),
                kernel=recording.kernel,
                cta=_cta(recording, cluster, rank),
                warp=warp,
                sm=passed[0].sm,
            )
        problems += [f"{recording.kernel}: {note}" for note in done.notes if note.startswith("replayed:")]
    return Timeline(source, "ns", tuple(spans), (*problems, *pairing.problems()))


def moments_of(marks: Sequence[Mark], passed: Sequence[tuple[int, float]]) -> Iterator[Moment]:
    """Yield the moments of one warp from the numbers of the marks that it passed, with their times."""
    opened: dict[str, bool] = {}
    for number, at in passed:
        mark = marks[number]
        if mark.what == "toggle":
            opened[mark.name] = not opened.get(mark.name, False)
            yield Moment(Kind.BEGIN if opened[mark.name] else Kind.END, mark.name, at)
        else:
            yield Moment(_KINDS[mark.what], mark.name, at)


def _cta(recording: Recording, cluster: int, rank: int) -> int:
    """Return the linear number of a CTA in the grid."""
    clusters = [n // c for n, c in zip(recording.grid, recording.cluster, strict=True)]
    place = []
    for count, size in zip(clusters, recording.cluster, strict=True):
        place.append(cluster % count * size + rank % size)
        cluster, rank = cluster // count, rank // size
    x, y, z = place
    return (z * recording.grid[1] + y) * recording.grid[0] + x

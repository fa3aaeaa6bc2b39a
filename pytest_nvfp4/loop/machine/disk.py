"""The size of the directory of state: outputs of old candidates go first, records never."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pytest_nvfp4.loop.state import LoopState, StateFolder
from pytest_nvfp4.loop.work.usage import occupied
from pytest_nvfp4.temporary import remove_tree

_RECORDS = frozenset(
    {"candidate.json", "examination.json", "verdict.json", "review.json", "gates.json", "prompt.txt", "diff.patch"}
)
_MB = 1_000_000


def used_bytes(folder: Path) -> int:
    """Return the bytes that a folder and all below it occupy; links are not followed."""
    return occupied(folder)[1]


def kept_within(folder: StateFolder, limit_mb: float, *, keep: LoopState) -> str:
    """Remove outputs of old candidates until the directory of state is small enough.

    Args:
        folder: The directory.
        limit_mb: Megabytes that it may have.
        keep: State whose current iteration is left alone; its promoted candidates come last.

    Returns:
        Why the loop has to end; empty if the directory is small enough.
    """
    limit = limit_mb * _MB
    used = used_bytes(folder.root)
    for place in _old(folder, keep):
        if used <= limit:
            return ""
        used -= _without_outputs(place)
    used = used_bytes(folder.root)
    if used <= limit:
        return ""
    return f"budget.disk_mb = {limit_mb:g} is reached: {folder.root} has {used / _MB:.4g} MB without outputs"


def _old(folder: StateFolder, state: LoopState) -> Iterator[Path]:
    promoted = {one.candidate for one in state.promotions}
    numbers = range(1, state.next_candidate)
    for number in [*(n for n in numbers if n not in promoted), *sorted(promoted)]:
        yield folder.candidate(number)
    for number in range(1, state.iteration):
        yield folder.iteration(number)


def _without_outputs(place: Path) -> int:
    """Remove from a folder what is no record, and return the bytes that this frees."""
    before = used_bytes(place)
    with contextlib.suppress(OSError):
        for path in list(place.iterdir()):
            if path.name not in _RECORDS:
                remove_tree(path)
                with contextlib.suppress(OSError):
                    path.unlink()
    return before - used_bytes(place)

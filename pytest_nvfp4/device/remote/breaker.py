"""Circuit breaker: jobs that always end their container, or a remote that loses every job, soon stop costing money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pytest_nvfp4.device.remote.base import Batch, ErrorKind, RemoteError

COUNTED: frozenset[ErrorKind] = frozenset({"lost", "memory"})
"""Errors that end a container, as a rule."""
_OF_KERNEL, _OF_REMOTE = 3, 8
"""Containers that are lost in a row, by the jobs of one kernel and by those of all kernels, before no more are sent."""


class Breaker:
    """Losses since the last result, by kernel and in total. One thread uses it."""

    def __init__(self) -> None:
        self._of_kernel: Counter[str] = Counter()
        self._in_a_row = 0

    def ended(self, batch: Batch, error: RemoteError | None) -> None:
        """Record the end of a batch. Raises RemoteError if too many batches in a row were lost."""
        kernels = set(_kernels(batch))
        if error is None:
            self._in_a_row = 0
            for kernel in kernels:
                del self._of_kernel[kernel]
        elif error.kind in COUNTED:
            self._in_a_row += 1
            self._of_kernel.update(kernels)
            if self._in_a_row >= _OF_REMOTE:
                raise RemoteError(
                    error.kind,
                    f"{self._in_a_row} containers in a row were lost, so no more is sent; the last: {error.problem}",
                    "look at the remote's status and log, then run again with --nvfp4-resume",
                )

    def refusal(self, batch: Batch, *, tries: int) -> RemoteError | None:
        """Return why a batch that was sent ``tries`` times is not sent now, or None."""
        lost = max((self._of_kernel[kernel] for kernel in _kernels(batch)), default=0)
        if lost < _OF_KERNEL:
            return None
        return RemoteError(
            "lost",
            f"not sent{' again' if tries else ''}: jobs of this kernel have lost their container {lost} times in a row",
            "the kernel may end its container (memory, a crash of the machine): run it alone",
        )


def _kernels(batch: Batch) -> Iterable[str]:
    return (job.kernel.sha256 for job in batch.jobs if job.kernel is not None)

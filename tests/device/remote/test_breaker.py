"""Jobs that always end their container stop being sent; a loss now and then stops nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteError
from pytest_nvfp4.device.remote.session import RemoteSession

from .fakes import FakeRemote, job, passed

LOST = RemoteError("lost", "the container ended", "run it again")


def of_kernels(*texts: str) -> list[Batch]:
    return [Batch(jobs=(job(number, text=text),)) for number, text in enumerate(texts)]


def run(reply: Callable[[Batch], BatchResult | RemoteError], batches: list[Batch]) -> tuple[FakeRemote, list[str]]:
    """The remote, and the error of each batch; empty for a result."""
    remote = FakeRemote(reply)
    session = RemoteSession(remote)
    ends = []
    for request in session.add(batches):
        try:
            request.wait()
            ends.append("")
        except RemoteError as error:
            ends.append(str(error))
    session.close()
    return remote, ends


@pytest.mark.parametrize("kind", ["lost", "memory"])
def test_a_kernel_that_always_ends_its_container_is_not_sent_on_and_on_and_others_are(kind: str) -> None:
    error = RemoteError(kind, "the container ended", "see its log")  # type: ignore[arg-type]
    bad = of_kernels(*["bad = 1\n"] * 20)
    good = of_kernels("good = 1\n", "better = 1\n")
    remote, ends = run(lambda sent: error if sent.jobs[0].kernel == bad[0].jobs[0].kernel else passed(sent), bad + good)
    assert ends[-2:] == ["", ""]
    assert all(ends[:20])
    assert "not sent: jobs of this kernel have lost their container" in ends[19]
    assert len([sent for sent in remote.sent if sent.id in {one.id for one in bad}]) <= 5


def test_a_remote_that_loses_every_job_ends_the_session() -> None:
    remote, ends = run(lambda _: LOST, of_kernels(*[f"x = {number}\n" for number in range(40)]))
    assert len(remote.sent) <= 10
    assert "8 containers in a row were lost" in ends[-1]


def test_losses_with_results_between_them_stop_nothing() -> None:
    """The negative control: every batch is lost once, and then returns."""
    lost: set[str] = set()

    def reply(sent: Batch) -> BatchResult | RemoteError:
        if sent.id in lost:
            return passed(sent)
        lost.add(sent.id)
        return LOST

    remote, ends = run(reply, of_kernels(*["same = 1\n"] * 20))
    assert ends == [""] * 20
    assert len(remote.sent) == 40

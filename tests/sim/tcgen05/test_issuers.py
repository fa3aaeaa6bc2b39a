"""A commit tracks what its own thread has started, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.run.asynchronous import Lazy
from tests.sim.tcgen05.gemm_ptx import COMMIT, GEMM, by_lane, gemm

ENDED = "the CTA ended, and no tcgen05.commit"


@pytest.mark.parametrize("schedule", [None, Lazy])
def test_a_commit_of_the_issuing_thread_is_right(schedule: type[Lazy] | None) -> None:
    _, _, ran = gemm(body=by_lane(0), asynchronous=schedule() if schedule else None)
    assert ran.grid.findings == []


@pytest.mark.parametrize("schedule", [None, Lazy])
def test_a_commit_of_another_lane_waits_for_nothing(schedule: type[Lazy] | None) -> None:
    got, want, ran = gemm(body=by_lane(3), asynchronous=schedule() if schedule else None)
    assert np.array_equal(got, want[:32, :2].astype(np.float32))
    commit, mma = ran.grid.findings
    assert commit.kind == mma.kind == "commit"
    assert "by lane 3 of warp 0 tracks no operation" in commit.message
    assert "4 by lane 0" in commit.message
    assert commit.where.text.startswith("@%p5 tcgen05.commit")
    assert mma.message.startswith(f"{ENDED} of lane 0 of warp 0")
    assert mma.where.text.startswith("tcgen05.mma")


def test_a_commit_with_nothing_under_way_is_no_mistake() -> None:
    body = by_lane(3)
    body = body[: body.index("tcgen05.cp.")] + body[body.index("WAIT:") :]
    load = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r2+MORE];"
    assert load in body
    _, _, ran = gemm(body=body.replace(load, "mov.u32 %r20, 0; mov.u32 %r21, 0;"))
    assert ran.grid.findings == []


def test_a_second_commit_of_one_thread_needs_no_new_operation() -> None:
    twice = GEMM.replace(COMMIT, COMMIT + "\n" + COMMIT.replace("[%r1]", "[%r1+8]")).replace(
        "mbarrier.init", "mbarrier.init.shared::cta.b64 [%r1+8], 1;\n@%p1 mbarrier.init", 1
    )
    _, _, ran = gemm(body=twice)
    assert ran.grid.findings == []

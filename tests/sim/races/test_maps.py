"""Tensor maps that are written while something may still read them, in shared and in global memory."""

from __future__ import annotations

import pytest

from tests.sim.races.map_programs import MAP, map_findings
from tests.sim.tma.kernels import DATA, first

STAGED = "\n".join(
    ["@%p0 bra COPIED;"]
    + [f"ld.global.b64 %rd5, [%rd101+{i}]; st.shared.b64 [%r1+{MAP + i}], %rd5;" for i in range(0, 128, 8)]
    + ["COPIED:"]
)
MEET = "bar.warp.sync 0xffffffff;"
REPLACE = f"tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1+{MAP}], %rd100;"
PUBLISH = (
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd102], "
    f"[%r1+{MAP}], 128; fence.proxy.tensormap::generic.acquire.gpu [%rd102], 128;"
)
IN_PLACE = (
    "tensormap.replace.tile.global_address.global.b1024.b64 [%rd102], %rd100;"
    "fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%rd102], 128;"
)
STORE = f"cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd102, {{%r9, %r9}}], [%r1+{DATA}];"
COMMIT = "cp.async.bulk.commit_group;"
READ = "cp.async.bulk.wait_group.read 0;"
END = "cp.async.bulk.wait_group 0;"


@pytest.mark.parametrize(
    ("between", "kinds"),
    [(COMMIT + READ, []), (COMMIT + "cp.async.bulk.wait_group 0;", []), ("", ["race"]), (COMMIT, ["race"]),
     (COMMIT + "cp.async.bulk.wait_group.read 1;", ["race"]), (READ, ["race"])],
    ids=["waited", "waited for all", "nothing", "only committed", "one group too few", "not committed"],
)  # fmt: skip
@pytest.mark.parametrize("change", [MEET + PUBLISH, first(IN_PLACE, "PLACED")], ids=["in shared", "in place"])
def test_a_map_that_a_store_may_still_read(change, between, kinds):
    # The store is committed and waited for at the end in any case.
    found = map_findings(STAGED, MEET, PUBLISH, first(STORE + between, "STORED"), change, COMMIT + END)
    assert [one.kind for one in found] == kinds
    if kinds:
        assert "may still read it" in found[0].message
        assert "tensor map work" in found[0].message
        assert "wait_group.read" in found[0].hint


def test_any_lane_of_the_warp_may_wait():
    second = "setp.ne.u32 %p4, %r0, 1; @%p4 bra WAITED;" + COMMIT + READ + "WAITED:"
    stored = first(STORE + COMMIT, "STORED")
    assert map_findings(STAGED, MEET, PUBLISH, stored, second, MEET, PUBLISH, COMMIT + END) == []


@pytest.mark.parametrize(
    ("staged", "kinds"),
    [(STAGED + MEET + first(REPLACE, "CHANGED") + MEET, []), (STAGED + first(REPLACE, "CHANGED") + MEET, []),
     (STAGED + MEET + first(REPLACE, "CHANGED"), ["race"]), (STAGED, ["race"])],
    ids=["met", "one lane alone", "replaced, then nothing", "copied, then nothing"],
)  # fmt: skip
def test_lanes_meet_before_a_map_is_published(staged, kinds):
    assert [one.kind for one in map_findings(staged, PUBLISH)] == kinds


def test_lanes_need_not_meet_behind():
    assert map_findings(STAGED, MEET, PUBLISH, first(REPLACE, "CHANGED"), MEET, PUBLISH) == []


@pytest.mark.parametrize(("barrier", "kinds"), [("bar.sync 1, 64;", []), ("", ["race"])])
def test_a_map_that_another_warp_staged(barrier, kinds):
    one_warp = "setp.ge.u32 %p4, %r0, 32; @%p4 bra OTHER;"
    body = (one_warp, STAGED, barrier, "bra END;", "OTHER:", barrier, PUBLISH, "END:")
    assert [one.kind for one in map_findings(*body, block=(64, 1, 1))] == kinds

"""Tensor maps that are written while something may still read them, in shared and in global memory."""

from __future__ import annotations

import pytest

from pytest_nvfp4.sim.run import parallel
from tests.sim.races.map_programs import ACQUIRE, MAP, load, map_findings, own_map, slot, staged
from tests.sim.races.map_programs import PUBLISH as PUBLISH_SLOT
from tests.sim.tma.kernels import DATA, first, wait

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


PAIR = {"grid": (2, 1, 1)}
RELEASE = "mov.u32 %r63, 1; st.release.gpu.global.b32 [%rd103], %r63;"
SPIN = "SPIN: {load} %r64, [%rd103]; setp.eq.u32 %p5, %r64, 0; @%p5 bra SPIN;"
ASK = SPIN.format(load="ld.acquire.gpu.global.b32")
FIRST_CTA = "mov.u32 %r65, %ctaid.x; setp.ne.u32 %p6, %r65, 0; @%p6 bra OTHERS;"
PREFETCH = first("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd110, {%r9, %r9}];", "FETCHED")


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)], ids=["clusters", "one cluster"])
@pytest.mark.parametrize(("number", "shared"), [("%ctaid.x", False), ("0", True)], ids=["a map each", "one map"])
def test_ctas_that_publish_one_map(number, shared, cluster):
    # Both write the same bytes.
    found = map_findings(*own_map(number), **PAIR, cluster=cluster)
    assert [one.kind for one in found if one.kind == "race"] == ["race"] * shared
    if shared:
        assert "overwrites tensor map work" in found[0].message
        assert "CTA (0, 0, 0)" in found[0].message
        assert "tensormaps[None, i, cta]" in found[0].hint
        assert all("the same" in note for note in found[0].notes)
    else:
        assert found == []


@pytest.mark.parametrize(
    ("release", "acquire", "use", "kinds"),
    [(RELEASE, ASK, load() + wait(), []), (RELEASE, ASK, PREFETCH, []), ("", "", load() + wait(), ["race"]),
     ("", "", PREFETCH, ["race"]),
     (RELEASE.replace("release.gpu", "relaxed.gpu"), SPIN.format(load="ld.relaxed.gpu.global.b32"),
      load() + wait(), []),
     (RELEASE.replace(".gpu", ".cta"), ASK, load() + wait(), ["race"]),
     (RELEASE, SPIN.format(load="ld.acquire.cta.global.b32"), load() + wait(), ["race"])],
    ids=["flag", "flag, prefetch", "nothing", "nothing, prefetch", "relaxed, ordered by the proxy fences",
         "release of a CTA", "acquire of a CTA"],
)  # fmt: skip
def test_a_map_that_another_cta_has_published(release, acquire, use, kinds):
    publish = first(release, "TOLD") if release else ""
    body = (
        slot("0"),
        FIRST_CTA,
        staged(),
        PUBLISH_SLOT,
        publish,
        "bra DONE;",
        "OTHERS:",
        acquire,
        ACQUIRE,
        use,
        "DONE:",
    )
    found = [one.kind for one in map_findings(*body, **PAIR)]
    assert found == kinds


@pytest.mark.parametrize(
    ("between", "kinds"),
    [(wait(), []), ("", ["race"]), (COMMIT + READ, ["race-warning"])],
    ids=["waited", "nothing", "a wait for bulk groups"],
)
@pytest.mark.parametrize(
    "change",
    [PUBLISH_SLOT, first("st.global.b64 [%rd110], %rd100;", "SET")],
    ids=["published", "stored"],
)
def test_a_map_that_a_load_may_still_read(change, between, kinds):
    end = "" if between == wait() else wait()
    found = map_findings(slot("0"), staged(), PUBLISH_SLOT, ACQUIRE, load(), between, change, end)
    assert [one.kind for one in found] == kinds
    if kinds == ["race"]:
        assert "full barrier" in found[0].hint


@pytest.mark.parametrize(("number", "kinds"), [(1, []), (0, ["race"])], ids=["the last", "the first"])
def test_a_wait_for_the_last_load_is_enough(number, kinds):
    loads = (load(0), load(1, label="AGAIN", to=DATA + 2048))
    late = wait(1 - number, label="LATE")
    found = map_findings(slot("0"), staged(), PUBLISH_SLOT, ACQUIRE, *loads, wait(number), PUBLISH_SLOT, late)
    assert [one.kind for one in found] == kinds


@pytest.mark.parametrize(("number", "kinds"), [("%ctaid.x", []), ("%r66", ["race"])], ids=["a map each", "pairs"])
def test_ctas_of_different_processes(number, kinds, monkeypatch):
    # CTA 0 runs first; CTAs 1 and 2 use one map and run in different processes.
    monkeypatch.setattr(parallel, "_WORTH_S", 0.0)
    pairs = "mov.u32 %r66, %ctaid.x; add.u32 %r66, %r66, 1; shr.u32 %r66, %r66, 1;"
    found = map_findings(pairs, *own_map(number), grid=(5, 1, 1), processes=2)
    assert [one.kind for one in found] == kinds


@pytest.mark.parametrize(("size", "kinds"), [(128, []), (64, ["race-warning"])])
def test_bytes_that_are_published_and_were_never_written(size, kinds):
    found = map_findings(slot("0"), staged(size), PUBLISH_SLOT)
    assert [one.kind for one in found] == kinds
    if kinds:
        assert "64 bytes of shared memory that were never written, from byte 64" in found[0].message


@pytest.mark.parametrize(("acquire", "kinds"), [(ACQUIRE, []), ("", ["race-warning"])])
def test_a_map_that_was_written_before_the_launch(acquire, kinds):
    found = map_findings("mov.u64 %rd102, %rd101;", slot("0"), acquire, load(), wait(), grid=(2, 1, 1))
    assert [one.kind for one in found] == kinds
    if kinds:
        assert "which its CTA has not acquired" in found[0].message

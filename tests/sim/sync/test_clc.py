from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.sync import clc
from tests.sim.sync.harness import clean, faults, findings, results, run

CANCEL = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r99+16], [%r99];"
MULTICAST = CANCEL.replace(".b128", ".multicast::cluster::all.b128")
REQUEST = """
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99], 16;
{cancel}
W{n}: mbarrier.try_wait.parity.shared.b64 %p9, [%r99], {parity};
@!%p9 bra W{n};
ld.shared.v2.b64 {{%rd1, %rd2}}, [%r99+16];
{{
.reg .b128 %h;
mov.b128 %h, {{%rd1, %rd2}};
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %h;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r1, %r2, %r3, _}}, %h;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r4, %h;
clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r5, %h;
clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r6, %h;
}}
"""
START = "@%p0 mbarrier.init.shared.b64 [%r99], 1;\nbar.sync 0;\n"


def request(n: int = 0, *, parity: int = 0, cancel: str = "@%p0 " + CANCEL) -> str:
    return REQUEST.format(n=n, parity=parity, cancel=cancel)


PERSISTENT = (
    START
    + """
mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ctaid.y; mov.u32 %r12, %ctaid.z;
mov.u32 %r20, 0;
LOOP:
mad.lo.u32 %r13, %r12, 3, %r11; mad.lo.u32 %r13, %r13, 5, %r10;
mul.wide.u32 %rd10, %r13, 4; add.u64 %rd10, %rd10, %rd100;
@%p0 atom.global.add.u32 %r14, [%rd10], 1;
"""
    + request().replace("], 0;", "], %r20;")
    + """
@!%p1 bra END;
mov.u32 %r10, %r1; mov.u32 %r11, %r5; mov.u32 %r12, %r3;
fence.proxy.async.shared::cta;
xor.b32 %r20, %r20, 1;
bar.sync 0;
bra LOOP;
END:
"""
)


def test_a_response_that_nothing_waits_for_names_the_request():
    ran = run(START + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99], 16;\n@%p0 " + CANCEL)
    (finding,) = ran.grid.findings
    assert finding.kind == "in-flight"
    assert finding.where is not None
    assert finding.where.text.startswith("@%p0 clusterlaunchcontrol.try_cancel")
    clean(START + request())


@pytest.mark.parametrize("schedule", [None, Lazy])
def test_a_persistent_loop_does_every_tile_once(schedule):
    options = {} if schedule is None else {"asynchronous": schedule()}
    ran = clean(PERSISTENT, threads=64, grid=(5, 3, 2), buffers={"tiles": np.zeros(30, np.uint32)}, **options)
    assert list(ran["tiles"]) == [1] * 30
    assert ran.grid.counters["ctas"] + ran.grid.counters["clc.cancelled"] == 30
    assert ran.grid.counters["clc.requests"] >= ran.grid.counters["clc.cancelled"]
    assert ran.grid.counters["clc.cancelled"] > 0


def test_the_coordinates_are_those_of_the_clusters_first_cta():
    leaders = """
mov.u32 %r7, %ctaid.x; setp.gt.u32 %p2, %r7, 1;
@%p2 exit;
mov.u32 %r8, %cluster_ctarank; setp.ne.u32 %p3, %r8, 0;
@%p3 bra END;
"""
    end = """
selp.u32 %r9, 1, 0, %p1;
@!%p0 bra END;
st.global.v4.b32 [%rd100], {%r9, %r1, %r2, %r3};
END: barrier.cluster.arrive; barrier.cluster.wait;
"""
    buffers = {"out": np.zeros(4, np.uint32)}
    ran = run(START + leaders + request() + end, grid=(4, 1, 1), cluster=(2, 1, 1), buffers=buffers)
    assert list(ran["out"]) == [1, 2, 0, 0]


def test_multicast_answers_every_cta_of_the_cluster():
    body = (
        START
        + """
mov.u32 %r7, %cluster_ctarank;
setp.eq.u32 %p2, %r7, 0; and.pred %p2, %p2, %p0;
barrier.cluster.arrive; barrier.cluster.wait;
"""
        + request(cancel="@%p2 " + MULTICAST)
        + """
mad.lo.u32 %r8, %r7, 4, 0; cvt.u64.u32 %rd3, %r8; add.u64 %rd3, %rd3, %rd100;
@%p0 st.global.b32 [%rd3], %r1;
barrier.cluster.arrive; barrier.cluster.wait;
"""
    )
    ran = run(body, grid=(4, 1, 1), cluster=(2, 1, 1), buffers={"out": np.zeros(2, np.uint32)})
    assert list(ran["out"]) == [2, 2]
    assert ran.grid.counters["clc.requests"] == ran.grid.counters["clc.cancelled"] == 1


def test_a_failed_request_has_no_coordinates():
    good, x, y = results(START + request() + "selp.u32 %r9, 1, 0, %p1;", "%r9", "%r1", "%r5", threads=64)
    assert set(good) == {0}
    assert set(x) == set(y) == {0xDEAD_BEEF}


def test_another_request_after_a_failure_is_found():
    once = START + request()
    assert findings(once) == []
    ((kind, message),) = findings(once + "@!%p1 bra GO;\nGO:\n" + request(1, parity=1))
    assert kind == "clc"
    assert "a request of this CTA failed" in message


RULES = {
    "all lanes": ("multi-lane", "by 32 lanes", START + CANCEL),
    "misaligned response": ("misaligned", "multiple of 16", START + "@%p0 " + CANCEL.replace("%r99+16", "%r99+24")),
    "over the barrier": ("mbarrier", "overlap the mbarrier", START + "@%p0 " + CANCEL.replace("%r99+16", "%r99")),
    "no barrier": ("uninitialised", "no mbarrier was initialised", "@%p0 " + CANCEL),
    "not waited for": (
        "clc",
        "is not a response",
        "@%p0 st.shared.v2.b64 [%r99+16], {%rd100, %rd100};\nbar.warp.sync -1;\n"
        "ld.shared.v2.b64 {%rd1, %rd2}, [%r99+16];\n{\n.reg .b128 %h;\nmov.b128 %h, {%rd1, %rd2};\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %h;\n}",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule):
    kind, words, body = RULES[rule]
    faults(kind, words, body, buffers={"x": np.zeros(4, np.uint32)})


def test_multicast_needs_all_ctas_to_be_there():
    body = (
        START
        + """
mov.u32 %r7, %cluster_ctarank; setp.eq.u32 %p2, %r7, 1;
@%p2 exit;
mov.u32 %r8, 0;
L: add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 20000; @%p3 bra L;
"""
        + "@%p0 "
        + MULTICAST
    )
    faults("cluster", "CTA rank 1, which has exited", body, grid=(2, 1, 1), cluster=(2, 1, 1))


@given(x=st.integers(0, 2**31 - 1), y=st.integers(0, 65535), z=st.integers(0, 65535))
def test_responses_survive_their_encoding(x, y, z):
    data = clc.encode((x, y, z))
    assert clc.decode(int.from_bytes(data, "little"), what="") == (x, y, z)
    assert x.to_bytes(4, "little") not in data or x in (0xDEAD_BEEF, 0)


def test_anything_else_is_no_response():
    assert clc.decode(int.from_bytes(clc.encode(None), "little"), what="") is None
    for value in (0, 1, (1 << 128) - 1, 0xA5A5 << 100):
        with pytest.raises(Fault, match="is not a response"):
            clc.decode(value, what="")

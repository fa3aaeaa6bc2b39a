"""Tensor maps that are written while something may still read them, in shared and in global memory."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.kernels import DATA, first, prologue
from tests.sim.tma.maps import Geometry

TILE = Geometry(ElementType.F16, (64, 16), (128,), (64, 16), (), 0)
MAP = 512
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


def told(*body, block=(32, 1, 1)):
    """What is found of a map that is staged, published, and then treated as in ``body``."""
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    step = 4 * block[0]
    fill = "\n".join(f"st.shared.b32 [%r4+{DATA + i}], %r0;" for i in range(0, 2048, step))
    lines = [prologue(), "mov.u32 %r9, 0; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r1;", fill,
             "fence.proxy.async.shared::cta; bar.sync 0;", *body]  # fmt: skip
    buffers = {"x": np.zeros(TILE.extent, np.uint8), "map": np.zeros(128, np.uint8), "work": np.zeros(128, np.uint8)}

    def patch(grid):
        regions = {region.name: region for region in grid.machine.memory}
        regions["map"].data[:] = np.frombuffer(TILE.encode(regions["x"].start), np.uint8)

    ran = run_ptx("\n".join(lines), buffers=buffers, prepare=patch, shared=1 << 14, machine=machine, block=block)
    return ran.grid.findings


@pytest.mark.parametrize(
    ("between", "kinds"),
    [(COMMIT + READ, []), (COMMIT + "cp.async.bulk.wait_group 0;", []), ("", ["race"]), (COMMIT, ["race"]),
     (COMMIT + "cp.async.bulk.wait_group.read 1;", ["race"]), (READ, ["race"])],
    ids=["waited", "waited for all", "nothing", "only committed", "one group too few", "not committed"],
)  # fmt: skip
@pytest.mark.parametrize("change", [MEET + PUBLISH, first(IN_PLACE, "PLACED")], ids=["in shared", "in place"])
def test_a_map_that_a_store_may_still_read(change, between, kinds):
    # The store is committed and waited for at the end in any case.
    found = told(STAGED, MEET, PUBLISH, first(STORE + between, "STORED"), change, COMMIT + END)
    assert [one.kind for one in found] == kinds
    if kinds:
        assert "may still read it" in found[0].message
        assert "tensor map work" in found[0].message
        assert "wait_group.read" in found[0].hint


def test_any_lane_of_the_warp_may_wait():
    second = "setp.ne.u32 %p4, %r0, 1; @%p4 bra WAITED;" + COMMIT + READ + "WAITED:"
    stored = first(STORE + COMMIT, "STORED")
    assert told(STAGED, MEET, PUBLISH, stored, second, MEET, PUBLISH, COMMIT + END) == []


@pytest.mark.parametrize(
    ("staged", "kinds"),
    [(STAGED + MEET + first(REPLACE, "CHANGED") + MEET, []), (STAGED + first(REPLACE, "CHANGED") + MEET, []),
     (STAGED + MEET + first(REPLACE, "CHANGED"), ["race"]), (STAGED, ["race"])],
    ids=["met", "one lane alone", "replaced, then nothing", "copied, then nothing"],
)  # fmt: skip
def test_lanes_meet_before_a_map_is_published(staged, kinds):
    assert [one.kind for one in told(staged, PUBLISH)] == kinds


def test_lanes_need_not_meet_behind():
    assert told(STAGED, MEET, PUBLISH, first(REPLACE, "CHANGED"), MEET, PUBLISH) == []


@pytest.mark.parametrize(("barrier", "kinds"), [("bar.sync 1, 64;", []), ("", ["race"])])
def test_a_map_that_another_warp_staged(barrier, kinds):
    one_warp = "setp.ge.u32 %p4, %r0, 32; @%p4 bra OTHER;"
    body = (one_warp, STAGED, barrier, "bra END;", "OTHER:", barrier, PUBLISH, "END:")
    assert [one.kind for one in told(*body, block=(64, 1, 1))] == kinds

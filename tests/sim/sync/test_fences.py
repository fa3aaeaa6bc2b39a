from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.sync.fences import TensormapFences
from tests.sim.ptx_case import run_ptx
from tests.sim.sync.harness import clean, faults, run
from tests.sim.sync.listeners import FenceListener
from tests.sim.sync.tensormap_stage import TensormapStage

KINDS = [
    *(
        f"fence.{sense}.{scope}"
        for sense in ("sc", "acq_rel", "acquire", "release")
        for scope in ("cta", "cluster", "gpu", "sys")
    ),
    "fence.acquire.sync_restrict::shared::cluster.cluster",
    "fence.release.sync_restrict::shared::cta.cluster",
    "fence.mbarrier_init.release.cluster",
    "fence.cluster",
    "fence.proxy.alias",
    "fence.proxy.async",
    "fence.proxy.async.global",
    "fence.proxy.async.shared::cta",
    "fence.proxy.async.shared::cluster",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
    "fence.proxy.tensormap::generic.release.gpu",
    "membar.cta",
    "membar.gl",
    "membar.sys",
    "membar.proxy.alias",
]


@pytest.mark.parametrize("opcode", KINDS)
def test_every_kind_is_counted_and_heard(opcode):
    machine = Machine()
    machine.monitor = monitor = FenceListener()
    body = f"setp.lt.u32 %p1, %r0, 40;\n@%p1 {opcode};"
    ran = clean(body, threads=64, machine=machine)
    kind = opcode.partition(".")[2]
    assert ran.grid.counters[f"fence.{kind}"] == 2
    assert monitor.heard == [(0, 0xFFFF_FFFF, kind), (1, 0xFF, kind)]


@pytest.mark.parametrize(
    "opcode",
    [
        "fence.sc",
        "fence.proxy.async.local",
        "fence.acquire.sync_restrict::shared::cta.cluster",
        "fence.release.sync_restrict::shared::cluster.cluster",
        "fence.mbarrier_init.acquire.cluster",
        "fence.proxy.async::generic.acquire.cluster",
        "membar.gpu",
    ],
)
def test_other_spellings_are_unsupported(opcode):
    with pytest.raises(Fault, match=r"fence|membar") as raised:
        run(f"{opcode};")
    assert raised.value.kind == "unsupported"


def test_the_acquire_takes_128_bytes_of_global_memory():
    acquire = "fence.proxy.tensormap::generic.acquire.gpu [{place}], {size};"
    maps = {"maps": np.zeros(256, np.uint8)}
    run_ptx(acquire.format(place="%rd100+128", size=128), buffers=maps)
    with pytest.raises(Fault, match="not a multiple of 128"):
        run_ptx(acquire.format(place="%rd100+64", size=128), buffers=maps)
    with pytest.raises(Fault, match="outside every tensor"):
        run_ptx(acquire.format(place="%rd100+256", size=128), buffers=maps)
    with pytest.raises(Fault, match="must be 128"):
        run_ptx(acquire.format(place="%rd100", size=64), buffers=maps)
    faults(
        "tensormap",
        "must be in global",
        "cvt.u64.u32 %rd1, %r99; cvta.shared.u64 %rd1, %rd1;\n" + acquire.format(place="%rd1", size=128),
    )


@pytest.fixture
def stage(monkeypatch):
    return TensormapStage(monkeypatch)


def test_untouched_maps_need_no_acquire(stage):
    assert stage.use(stage.one) == ""
    stage.one.unit(TensormapFences).acquire(stage.map, "gpu")
    assert stage.use(stage.one) == ""


@pytest.mark.parametrize(("written", "complete"), [(128, True), (64, True), (63, False)])
def test_an_acquired_map_has_all_its_fields(stage, written, complete):
    region = stage.machine.memory.find(stage.map)
    region.initialised = np.zeros(region.size, np.bool_)
    region.initialised[stage.map - region.start :][:written] = True
    fences = stage.one.unit(TensormapFences)
    if complete:
        fences.acquire(stage.map, "gpu")
        assert stage.use(stage.one) == ""
    else:
        with pytest.raises(Fault, match=r"byte .*, which was never written"):
            fences.acquire(stage.map, "gpu")


def test_a_modified_map_needs_release_and_acquire_of_a_wide_enough_scope(stage):
    writer = stage.one.warps[0]
    stage.writes.modified(writer, stage.map)
    assert "was modified by CTA (0, 0, 0) warp 0, and this CTA has not acquired it since" in stage.use(stage.far)
    stage.far.unit(TensormapFences).acquire(stage.map, "gpu")
    assert "never released" in stage.use(stage.far)
    stage.writes.release(writer, "cluster")
    assert "released with scope .cluster; the scope must be at least .gpu" in stage.use(stage.far)
    stage.writes.release(writer, "gpu")
    assert stage.use(stage.far) == ""
    assert "has not acquired" in stage.use(stage.peer)
    stage.peer.unit(TensormapFences).acquire(stage.map, "cta")
    assert "acquired with scope .cta; the scope must be at least .cluster" in stage.use(stage.peer)
    stage.peer.unit(TensormapFences).acquire(stage.map, "cluster")
    assert stage.use(stage.peer) == ""


def test_a_release_of_another_cta_does_not_help(stage):
    stage.writes.modified(stage.one.warps[0], stage.map)
    stage.writes.release(stage.peer.warps[0], "sys")
    stage.one.unit(TensormapFences).acquire(stage.map, "gpu")
    assert "never released" in stage.use(stage.one)
    stage.writes.release(stage.one.warps[0], "cta")
    assert stage.use(stage.one) == ""


def test_a_map_modified_after_the_acquire_must_be_acquired_again(stage):
    writer = stage.one.warps[0]
    stage.writes.modified(writer, stage.map, released="gpu")
    stage.far.unit(TensormapFences).acquire(stage.map, "gpu")
    assert stage.use(stage.far) == ""
    stage.writes.modified(writer, stage.map, released="gpu")
    assert "after this CTA's last acquire" in stage.use(stage.far)
    stage.far.unit(TensormapFences).acquire(stage.map, "gpu")
    assert stage.use(stage.far) == ""
    stage.memory[stage.map - stage.memory.ctypes.data + 5] = 1
    assert "was changed after this CTA's last acquire" in stage.use(stage.far)

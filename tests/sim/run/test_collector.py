"""Garbage that a launch leaves."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from pytest_nvfp4.sim.races.agents import WarpAgent
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx

BODY = """
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; setp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared.b64 [%r2], 64; bar.sync 0;
mbarrier.arrive.shared.b64 _, [%r2];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;
mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %rd100, %rd1; st.global.b32 [%rd2], %r1;
"""


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("cluster", [1, 2])
def test_ended_clusters_are_free_without_a_collection(
    monkeypatch: pytest.MonkeyPatch, cluster: int, races: bool
) -> None:
    made: list[weakref.ref[Cta]] = []
    real = Cta.__init__

    def noted(self: Cta, *arguments: object, **options: object) -> None:
        real(self, *arguments, **options)  # type: ignore[arg-type]
        made.append(weakref.ref(self))

    monkeypatch.setattr(Cta, "__init__", noted)
    agents: list[weakref.ref[WarpAgent]] = []
    begin = WarpAgent.__init__

    def begun(self: WarpAgent, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        agents.append(weakref.ref(self))

    monkeypatch.setattr(WarpAgent, "__init__", begun)
    machine = Machine()
    machine.monitor = Detector(warnings=True) if races else None
    gc.disable()
    try:
        run_ptx(
            BODY, grid=(8, 1, 1), cluster=(cluster, 1, 1), block=(64, 1, 1), shared=64, machine=machine,
            buffers={"out": np.zeros(64, np.uint32)},
        )  # fmt: skip
        assert len(made) == 8
        assert not [one for one in made if one() is not None]
        assert len(agents) == (16 if races else 0)
        assert not [one for one in agents if one() is not None]
    finally:
        gc.enable()

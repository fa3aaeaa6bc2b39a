"""Programs of accesses to global memory, run on the shadow memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.clocks import Agent, Clocks
from pytest_nvfp4.sim.races.global_shadow import GlobalShadow
from pytest_nvfp4.sim.races.names import AgentInfo
from tests.sim.races.happens_before import AGENTS, OBJECTS, SIZE

WHO = SimpleNamespace(cluster=0)


def racy_by_shadow(program: Sequence[tuple[Any, ...]], *, sets: int = 1 << 17) -> tuple[int, set[int]] | None:
    """Return the index of the first access that races, and those that it races with."""
    clocks = Clocks(0)
    agents = [Agent(clocks, AgentInfo("warp", f"agent {i}")) for i in range(AGENTS)]
    objects = [clocks.clock() for _ in range(OBJECTS)]
    found: list[int] = []
    memory = GlobalShadow(lambda pair: found.append(pair.old.at))
    memory._limit = sets
    kept = ctypes.create_string_buffer(SIZE)
    region = memory.shadow(Region("x", ctypes.addressof(kept), SIZE))
    for index, step in enumerate(program):
        agent = agents[step[1]]
        if step[0] == "release":
            agent.release(objects[step[2]])
        elif step[0] == "narrow":
            objects[step[2]].join_performed(agent.clock, clocks.generic)
            agent.advance()
        elif step[0] == "acquire":
            agent.acquire(objects[step[2]])
        elif step[0] == "fence":
            agent.fence_proxy(everywhere=True)
        else:
            _, _, touched, writes, flags = step
            access = Access(agent.number, agent.epoch(), flags, index, WHO)  # type: ignore[arg-type]
            offsets = np.array(touched, np.intp)
            if writes:
                memory.write(region, offsets, 1, access, agent.clock)
            else:
                memory.read(region, region.units(offsets, 1), access, agent.clock)
            if found:
                return index, set(found)
    return None

"""The device's allocations: what is freed is nobody's, and a fault there says so."""

from __future__ import annotations

import pytest

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.globals import GlobalMemory
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory


def test_a_read_of_freed_memory_names_it() -> None:
    memory = GlobalMemory()
    device = SimulatedMemory(memory)
    kept, freed = device.allocate(64), device.allocate(100)
    device.name(freed, "A of group 1")
    memory.region(freed + 96, 4, write=False, what="ld")
    device.free(freed)
    with pytest.raises(Fault, match="byte 96 of A of group 1, which the host has freed") as caught:
        memory.region(freed + 96, 4, write=False, what="ld")
    assert caught.value.kind == "out-of-bounds"
    with pytest.raises(Fault, match="0 bytes after the end of device allocation 0 of 64 bytes"):
        memory.region(kept + 64, 4, write=False, what="ld")
    with pytest.raises(HostSideError, match="freed twice"):
        device.free(freed)

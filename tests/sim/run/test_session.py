"""A launch that may overlap the one before it on its stream: without the race check, one that never waits is told."""

from __future__ import annotations

import struct

import pytest

from pytest_nvfp4.driver.launches import Launch, LaunchAttribute, ModuleImage
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session
from tests.sim.ptx_case import kernel_text

EARLY, WAIT = "griddepcontrol.launch_dependents;\n", "griddepcontrol.wait;\n"
READ = "mov.u32 %r0, 0;\nld.global.b32 %r1, [%rd100];\nst.global.b32 [%rd100], %r1;\n"


def findings(*bodies: str, dependent: bool = True) -> list[Finding]:
    """Return the findings of kernels that are launched one after the other on one word."""
    machine = Machine()
    memory = SimulatedMemory(machine.memory)
    session = Session(machine, memory)
    word = memory.allocate(4)
    attributes = {LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION: struct.pack("<i", 1).ljust(64, b"\0")}
    for ordinal, body in enumerate(bodies):
        session.launch(
            Launch(
                kernel="kernel", grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), dynamic_smem=0, stream=0,
                params=(word.to_bytes(8, "little"),), attributes=attributes if dependent else {}, ordinal=ordinal,
                module=ModuleImage(cubin=b"", ptx=kernel_text(body, buffers=1), param_sizes={}),
            )
        )  # fmt: skip
    return session.findings


def test_a_launch_that_never_waits_names_its_first_access() -> None:
    (finding,) = findings(EARLY, READ)
    assert finding.kind == "griddepcontrol"
    assert finding.message.startswith("no warp of kernel executes griddepcontrol.wait before this first access")
    assert finding.where is not None
    assert finding.where.text.startswith("ld.global.b32")
    assert finding.where.ptx_line is not None


def test_a_launch_without_an_access_names_the_kernel() -> None:
    (finding,) = findings(EARLY, "mov.u32 %r0, 0;\n")
    assert "griddepcontrol.wait, and the launch may begin" in finding.message
    assert finding.where is not None
    assert finding.where.at is None


@pytest.mark.parametrize("bodies", [(EARLY, WAIT + READ), (READ, READ)], ids=["it waits", "no early launch"])
def test_other_dependent_launches_have_no_finding(bodies: tuple[str, str]) -> None:
    assert findings(*bodies) == []


def test_a_launch_that_may_not_overlap_has_no_finding() -> None:
    assert findings(EARLY, READ, dependent=False) == []

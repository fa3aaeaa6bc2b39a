"""What our analysis says of a program: the simulator with the race detector, as the ``races`` check runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Late
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from tests.silicon.sanitizer.maps import MAPS
from tests.silicon.sanitizer.program import FILE, Program, Said, inputs
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.maps import Geometry

__all__ = ["Verdict", "agrees", "verdict"]

_ABOUT = ("race", "proxy", "tensormap")
_EARLY = ("uninitialised", "in-flight")
_PLACE = re.compile(re.escape(FILE) + r":(\d+)")


@dataclass(frozen=True)
class Verdict:
    """Findings, and whether the output is what it must be; None if the program did not end."""

    findings: tuple[Finding, ...]
    right: bool | None

    @property
    def kinds(self) -> list[str]:
        """Of the findings."""
        return list(dict.fromkeys(finding.kind for finding in self.findings))


def verdict(program: Program) -> Verdict:
    """The eager schedule; where a warp reads what is not there yet, one in which that warp is late."""
    first = said = _run(program, ())
    late: list[int] = []
    while not any(finding.kind in _ABOUT for finding in said.findings):
        early = next((f for f in said.findings if f.kind in _EARLY and f.where and f.where.warp is not None), None)
        if early is None or early.where is None or early.where.warp in late:
            return first
        late.append(early.where.warp)  # type: ignore[arg-type]
        said = _run(program, late)
    return said


def _run(program: Program, late: tuple[int, ...] | list[int]) -> Verdict:
    idiom = program.idiom
    machine = Machine(model=for_arch("sm_90a"), asynchronous=Late(late) if late else None)
    machine.monitor = Detector()
    buffers = inputs(idiom)
    grids = []

    def prepare(grid: Grid) -> None:
        grids.append(grid)
        regions = {region.name: region for region in machine.memory}
        regions["w"].initialised = np.zeros(regions["w"].size, np.bool_)
        for at, (name, spec) in enumerate(MAPS):
            geometry = Geometry(element=spec.element, dims=spec.dims, strides=spec.strides, box=spec.box)
            regions["maps"].data[128 * at :][:128] = np.frombuffer(geometry.encode(regions[name].start), np.uint8)

    ended: bool | None = None
    faults: list[Finding] = []
    try:
        ran = run_ptx(
            program.ptx,
            raw=True,
            machine=machine,
            buffers=buffers,
            grid=(idiom.grid, 1, 1),
            block=(idiom.block, 1, 1),
            cluster=(idiom.cluster, 1, 1),
            shared=idiom.shared,
            arch="sm_90a",
            read_only=("x",),
            prepare=prepare,
        )
        ended = bool((ran["y"] == idiom.want(np.asarray(buffers["x"]))).all())
    except Fault as fault:
        faults.append(fault.finding())
    found = grids[0].findings if grids else ()
    # The host copies the maps to memory, and no recorded program acquires them.
    return Verdict((*(one for one in found if "its CTA has not acquired" not in one.message), *faults), ended)


def agrees(program: Program, said: Verdict) -> bool:
    """Whether that is what the corpus states: nothing of a correct program, the kind and the lines of a defect."""
    want: Said | None = program.defect.ours if program.defect is not None else None
    if want is None:
        return not said.findings and (program.defect is not None or said.right is True)
    return any(_about(program, want, finding) for finding in said.findings)


def _about(program: Program, want: Said, finding: Finding) -> bool:
    if finding.kind != want.kind:
        return False
    named = {int(number) for text in (finding.message, *finding.notes) for number in _PLACE.findall(text)}
    if finding.where is not None and finding.where.source is not None:
        named.add(finding.where.source.line)
    return all(named & set(program.tags[tag]) for tag in want.tags)

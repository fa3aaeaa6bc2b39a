"""Runs straight-line PTX on one warp (or a cluster of warps) without the scheduler: parse, lower, execute."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.lower.compiler import longest_prefix
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.lower.layout import SharedLayout
from pytest_nvfp4.sim.memory.arena import Arena
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.table import LOWERINGS
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Module
from pytest_nvfp4.sim.ptx.uses import Uses
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.cta import Cluster, Cta
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.warp import Warp

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 p0, .param .align 8 .b8 p1[16])
{
.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %d<64>; .reg .b128 %q<8>; .reg .f32 %f<32>;
.shared .align 128 .b8 smem[4096];
.local .align 16 .b8 stack[64];
"""


@lru_cache(maxsize=64)
def parsed(body: str) -> Module:
    return parse(HEADER + body + "\nret;\n}\n")


@dataclass
class Program:
    shared: SharedLayout
    frames = SimpleNamespace(behind=lambda *_, **__: (True, None))

    def uses(self, at: int, _registers: frozenset[int] | None = None, **_: str) -> Uses:
        """Every register is a result of the test, so that each load is used at once."""
        return Uses(frozenset({at}))


@dataclass
class Launch:
    """The parts of a grid that memory needs."""

    machine: Machine
    program: Program
    kernel: Any
    parameters: bytes
    parameter_address: int
    block: tuple[int, int, int] = (32, 1, 1)
    shape: tuple[int, int, int] = (4, 1, 1)
    cluster_shape: tuple[int, int, int] = (1, 1, 1)
    counters: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)
    instruction: None = None

    def where(self, warp: Warp, at: int, *, mask: int) -> Where:
        return Where("kernel", warp=warp.index, lanes=tuple(lanes.lanes(mask)), at=at)

    def report(self, kind: str, message: str, *, hint: str = "", where: Where | None = None) -> None:
        self.findings.append(Finding(kind, message, hint=hint, where=where))

    def reported(self, _kind: str, _at: int) -> bool:
        """Programs of the test have one number for several instructions, each of which is reported."""
        return False


class Case:
    """A machine with tensors, one cluster of CTAs of one warp each, and PTX to run on a warp."""

    def __init__(self, *, ctas: int = 1, threads: int = 32, asynchronous: Asynchronous | None = None) -> None:
        self.machine = Machine(asynchronous=asynchronous)
        self.arena = Arena(reserve=1 << 32)
        self.parameters = bytes(range(0x70, 0x70 + 24))
        module = parsed("")
        self.kernel = module.kernels["k"]
        self.layout = SharedLayout(module, self.kernel)
        where = self.arena.allocate(24, name="parameters")
        region = self.machine.memory.add(Region("the kernel's parameters", where, 24, writable=False))
        region.data[:] = np.frombuffer(self.parameters, np.uint8)
        self.launch = Launch(
            self.machine, Program(self.layout), self.kernel, self.parameters, where, block=(threads, 1, 1)
        )
        self.cluster = Cluster(self.launch, (0, 0, 0), (ctas, 1, 1))  # type: ignore[arg-type]
        self.warps: list[Warp] = []
        self.ready: deque[Warp] = deque()
        for rank in range(ctas):
            cta = Cta(
                self.cluster,
                rank,
                (rank, 0, 0),
                place=(rank, 0, 0),
                shared_bytes=self.layout.static,
                scheduler=SimpleNamespace(ready=self.ready),  # type: ignore[arg-type]
            )
            warp = Warp(cta, 0, registers=[])
            cta.warps = [warp]
            self.cluster.ctas.append(cta)
            self.warps.append(warp)
        self.registers: dict[str, Any] = {}

    def tensor(self, data: np.ndarray, name: str = "A", **named: Any) -> Region:
        """A tensor in global memory with a copy of the data."""
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        address = self.arena.allocate(flat.size, name=name)
        region = self.machine.memory.add(Region(name, address, flat.size, **named))
        region.data[:] = flat
        return region

    def smem(self, data: np.ndarray, rank: int = 0, at: int = 0) -> int:
        """Put data into shared memory; its address."""
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        shared = self.cluster.ctas[rank].shared
        shared.data[at : at + flat.size] = flat
        shared.written[at : at + flat.size] = True
        return shared.base + at

    def block(self, body: str) -> Any:
        """The body's function, and its registers by name."""
        module = parsed(body)
        kernel = module.kernels["k"]
        emitter = Emitter(
            special=lambda name: (_ for _ in ()).throw(KeyError(name)),
            symbol=lambda name: (
                f"(w.cta.shared.base + {self.layout.offsets[name]})"
                if name in self.layout.offsets
                else str(self.layout.local_offsets[name])
            ),
            parameter=lambda name: next((p.offset for p in kernel.parameters if p.name == name), None),
        )
        for instruction in kernel.instructions[:-1]:
            emitter.begin(instruction)
            key = longest_prefix(LOWERINGS, instruction.parts)
            assert key is not None, instruction.opcode
            LOWERINGS[key](instruction, emitter)
            emitter.end()
        slots = {r.slot: r.name for r in kernel.registers}
        loads = "".join(f"    v{slot} = R.get({slots[slot]!r}, 0)\n" for slot in emitter.loaded)
        stores = "".join(f"    R[{slots[slot]!r}] = v{slot}\n" for slot in emitter.written)
        text = f"def block(R, w, m):\n{loads}" + "\n".join(emitter.lines) + f"\n{stores}    return None\n"
        exec(compile(text, "<block>", "exec"), emitter.globals)
        return emitter.globals["block"]

    def run(self, body: str, *, mask: int = lanes.FULL, rank: int = 0, **registers: Any) -> dict[str, Any]:
        """Run the body; registers by name without the percent sign, before and after."""
        values: dict[str, Any] = {"%" + name: value for name, value in registers.items()}
        warp = self.warps[rank]
        warp.current.mask = mask
        answer = self.block(body)(values, warp, mask)
        result = {name[1:]: value for name, value in values.items()}
        result["parked"] = answer
        return result

    def count(self) -> Counter[str]:
        """The counters of all CTAs, as they are when a CTA ends."""
        from pytest_nvfp4.sim.memory.tally import Tally

        for cta in self.cluster.ctas:
            cta.unit(Tally).at_exit()
        return self.launch.counters

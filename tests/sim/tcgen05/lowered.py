"""Single instructions lowered, and what a monitor of them notes."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.sim.lower.compiler import longest_prefix
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.tcgen05.table import LOWERINGS

HEAD = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel()
{
.reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<200>; .reg .b64 %rd<9>;
"""


def lower(text: str) -> list[str]:
    """The Python of one instruction. Raises Unsupported."""
    module = parse(HEAD + text + "\nret;\n}\n")
    instruction = module.kernels["kernel"].instructions[0]
    emitter = Emitter(special=lambda _: ("0", 32), symbol=lambda _: "0", parameter=lambda _: None)
    prefix = longest_prefix(LOWERINGS, instruction.parts)
    assert prefix is not None
    emitter.begin(instruction)
    LOWERINGS[prefix](instruction, emitter)
    emitter.end()
    compile("def block(R, w, m):\n" + "\n".join(emitter.lines), "block", "exec")
    return emitter.lines


def registers(count: int, first: int = 10) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


class Notes:
    """A monitor that writes down all it hears, without the warp and the place."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *said, **named: self.heard.append((name, *said[2:], *named.values()))

"""How many CTAs of a launch fit an SM, and what keeps further ones out."""

from __future__ import annotations

import math

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.model.recording import Does, Program, Recording, Unit

__all__ = ["most_registers", "obstacles"]

_TMEM_COLUMNS = 512
"""Columns of an SM (PTX ISA, tcgen05: Tensor Memory)."""
_MOST_REGISTERS = 255
"""Registers that an instruction can name (CUDA C++ Programming Guide, compute capabilities)."""
_WARP_UNIT = 256
"""Registers are allocated to a warp in units of this size (CUDA occupancy calculator)."""


def obstacles(recording: Recording, ctas: int) -> list[str]:
    """Return why a number of the launch's CTAs does not fit an SM together; empty if shared memory, tensor memory,
    threads and the number of blocks allow it. A recording does not hold the number of registers (`most_registers`).
    """
    model = for_arch(recording.arch)
    threads = math.prod(recording.block)
    columns = max((_columns(program) for program in recording.programs), default=0)
    needed = (
        ("bytes of shared memory", recording.shared_bytes + model.smem_reserved_per_block, model.smem_per_sm),
        ("columns of tensor memory", columns, _TMEM_COLUMNS),
        ("threads", -(-threads // model.warp_size) * model.warp_size, model.threads_per_sm),
        ("CTAs", 1, model.blocks_per_sm),
    )
    return [
        f"{ctas} CTAs need {ctas * each} {what}, and an SM has {most}"
        for what, each, most in needed
        if ctas * each > most
    ]


def most_registers(recording: Recording, ctas: int) -> int | None:
    """Return the registers that a thread may have if a number of CTAs is to fit an SM; None if any number is fine."""
    model = for_arch(recording.arch)
    warps = -(-math.prod(recording.block) // model.warp_size)
    units = model.registers_per_sm // _WARP_UNIT // (ctas * warps)
    registers = units * _WARP_UNIT // model.warp_size
    return registers if registers < _MOST_REGISTERS else None


def _columns(program: Program) -> int:
    """Return the columns of tensor memory that a CTA of a cluster allocates."""
    found: dict[int, int] = {}
    for warp in program.warps:
        items = warp.events["item"][warp.events["does"] == Does.ISSUE]
        for item in items[program.operations["unit"][items] == Unit.TMEM_ALLOCATE].tolist():
            columns = program.shapes[program.operations["shape"][item]].columns
            found[warp.cta] = found.get(warp.cta, 0) + columns
    return max(found.values(), default=0)

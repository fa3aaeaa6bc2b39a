"""``cost``: the kernel does not do more than the snapshot says.

What one call does is counted in the simulator, exactly and repeatably: bytes and requests of TMA, matrix instructions
and their padding, traffic and conflicts of shared memory, global sectors, atomics, instructions of each warp, waits.
Growth of a counter beyond its tolerance fails; less of it is reported, until the snapshot is brought up to date. Under
another version of the DSL than the snapshot's, ordinary instructions, loads and stores fail nothing: another compiler
writes other code. No number is a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.simulating import KernelInSimulator

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare_cost import CostSnapshot


def cost(nvfp4_simulated: KernelInSimulator, nvfp4_cost_snapshot: CostSnapshot) -> None:
    """No counter grew."""
    trace, call, problem = nvfp4_simulated.counted()
    nvfp4_cost_snapshot(trace, call, problem, tolerance=nvfp4_simulated.tolerance)

"""Calls of kernels that nobody ran, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_nvfp4.device.result import OutputWrites, SimulatedCall, SimulatedLaunch

COUNTERS = {
    "ctas": 4,
    "instructions": 460,
    "instructions.warp0": 100,
    "instructions.warp1": 100,
    "instructions.warp2": 100,
    "instructions.warp3": 160,
    "warp0.tmem": 4,
    "warp0.tensormap": 1,
    "warp1.tmem": 4,
    "warp1.tensormap": 4,
    "warp3.load": 4,
    "mma.instructions": 4,
    "mma.flops": 4 * 2 * 128 * 128 * 64,
    "shared.load.conflicts": 0,
    "tma.load.bytes": 4096,
    "tma.load.requests": 0,
}


def call(
    *, writers: Sequence[int | None] = (4,), counters: Mapping[str, int] = COUNTERS, ctas_per_sm: int = 2
) -> SimulatedCall:
    """A call with a launch of four CTAs for each number of writers."""
    launch = SimulatedLaunch(
        kernel="kernel_cutlass_fill_TiledMMA_0",
        grid=(4, 1, 1),
        block=(128, 1, 1),
        cluster=(2, 1, 1),
        shared_bytes=1024,
        ctas_per_sm=ctas_per_sm,
        counters=dict(counters),
    )
    return SimulatedCall(
        call=0,
        case=0,
        model="NVIDIA B200",
        sms=148,
        launches=tuple(launch.model_copy(update={"writers": count}) for count in writers),
        outputs=(OutputWrites(group=0, elements=5120, never=0, by_two=0, twice=0, ctas=4, tiles=4),),
    )

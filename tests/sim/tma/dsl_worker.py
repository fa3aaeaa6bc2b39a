"""TMA load, store and reduction as CuTe DSL compiles them, simulated: run in a process of its own by test_dsl.py."""

from __future__ import annotations

import json
import sys
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass import utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

from pytest_nvfp4.device.worker.simulator import simulate
from pytest_nvfp4.sim.run.asynchronous import Asynchronous, Eager, Lazy

ROWS = 32
SWIZZLES = (0, 1, 2, 3)


class Copy:
    """y = x, or y += x, tile by tile: one TMA load and one TMA store or reduction a CTA."""

    def __init__(self, *, element: type[cutlass.Numeric], bits: int, reduce: bool, pad: int) -> None:
        self.element = element
        self.bits = bits
        self.reduce = reduce
        # Bytes before the tile in shared memory, to move it inside the swizzle's pattern.
        self.pad = pad

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor) -> None:
        width = {0: 128, 1: 32, 2: 64, 3: 128}[self.bits] * 8 // x.element_type.width
        self.tile = (ROWS, width)
        plain = cute.make_layout(self.tile, stride=(width, 1))
        layout = plain
        if cutlass.const_expr(self.bits):
            layout = cute.make_composed_layout(cute.make_swizzle(self.bits, 4, 3), 0, plain)
        load, from_x = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, self.tile)
        op = cpasync.CopyReduceBulkTensorTileS2GOp() if self.reduce else cpasync.CopyBulkTensorTileS2GOp()
        store, to_y = cpasync.make_tiled_tma_atom(op, y, layout, self.tile)
        grid = (cute.ceil_div(x.shape[0], ROWS), cute.ceil_div(x.shape[1], width), 1)
        self.kernel(load, from_x, store, to_y, layout).launch(grid=grid, block=(32, 1, 1))

    @cute.kernel
    def kernel(
        self, load: cute.CopyAtom, x: cute.Tensor, store: cute.CopyAtom, y: cute.Tensor, layout: Any
    ) -> None:  # a layout, or one composed with a swizzle
        row, column, _ = arch.block_idx()
        smem = utils.SmemAllocator()
        barrier = smem.allocate_array(cutlass.Int64, 1)
        smem.allocate_array(cutlass.Int8, 1024 - 8 + self.pad)
        plain = layout if cutlass.const_expr(not self.bits) else layout.outer
        swizzle = None if cutlass.const_expr(not self.bits) else layout.inner
        tile = smem.allocate_tensor(self.element, plain, byte_alignment=128, swizzle=swizzle)
        size = cute.size(plain) * self.element.width // 8
        gx = cute.local_tile(x, self.tile, (row, column))
        gy = cute.local_tile(y, self.tile, (row, column))
        one = cute.make_layout(1)
        s_in, g_in = cpasync.tma_partition(load, 0, one, cute.group_modes(tile, 0, 2), cute.group_modes(gx, 0, 2))
        s_out, g_out = cpasync.tma_partition(store, 0, one, cute.group_modes(tile, 0, 2), cute.group_modes(gy, 0, 2))
        with arch.elect_one():
            arch.mbarrier_init(barrier, 1)
        arch.mbarrier_init_fence()
        arch.sync_warp()
        with arch.elect_one():
            arch.mbarrier_arrive_and_expect_tx(barrier, size)
        cute.copy(load, g_in, s_in, tma_bar_ptr=barrier)
        arch.mbarrier_wait(barrier, 0)
        cute.copy(store, s_out, g_out)
        arch.cp_async_bulk_commit_group()
        arch.cp_async_bulk_wait_group(0, read=True)


def run(
    dtype: torch.dtype, bits: int, *, reduce: bool, shape: tuple[int, int], pad: int, asynchronous: Asynchronous
) -> dict[str, Any]:
    torch.manual_seed(bits)
    x = torch.randint(-8, 8, shape).to(dtype)
    y = torch.randint(-8, 8, shape).to(dtype)
    with simulate(arch="sm_100a", asynchronous=asynchronous) as sim:
        dx, dy = x.cuda(), y.cuda()
        element = {torch.float16: cutlass.Float16, torch.float32: cutlass.Float32}[dtype]
        kernel = Copy(element=element, bits=bits, reduce=reduce, pad=pad)
        kernel(from_dlpack(dx, assumed_align=16), from_dlpack(dy, assumed_align=16))
        got = dy.cpu()
        said = [str(finding) for finding in sim.findings]
        ptx = sim.launches[-1].launch.module.ptx or ""
        counters = dict(sim.launches[-1].counters)
    want = x + y if reduce else x
    return {
        "wrong": int((got != want).sum()),
        "findings": said,
        "opcodes": sorted({line.split()[0] for line in ptx.splitlines() if line.strip().startswith("cp.")}),
        "counters": {key: value for key, value in counters.items() if key.startswith("tma")},
    }


def main() -> None:
    for reduce in (False, True):
        for bits in SWIZZLES:
            for schedule in (Eager, Lazy):
                dtype = torch.float32 if reduce else torch.float16
                said = run(dtype, bits, reduce=reduce, shape=(72, 200), pad=128 * bits, asynchronous=schedule())
                name = f"{'reduce' if reduce else 'store'}-{bits}-{schedule.__name__}"
                sys.stdout.write("CASE " + json.dumps({"name": name, **said}) + "\n")


if __name__ == "__main__":
    main()

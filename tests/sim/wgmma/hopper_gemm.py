"""A small GEMM of CuTe DSL for sm_90a whose shared-memory layouts, descriptors and fragments are the DSL's own.

``python -m tests.sim.wgmma.hopper_gemm FOLDER`` runs every configuration in the simulator: JSON, one line each.
D[m, n] = sum over k of A[m, k] B[n, k], A from shared memory or from registers, both operands K- or MN-major.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
os.environ.update(redirect.environment(FOLDER, arch="sm_90a"))

import cutlass  # noqa: E402
import torch  # noqa: E402
from cuda.bindings import driver  # noqa: E402
from cutlass import cute, utils  # noqa: E402
from cutlass.cute.nvgpu import cpasync, warpgroup  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402
from cutlass.utils import hopper_helpers  # noqa: E402

try:
    from cutlass.cute.nvgpu import OperandMajorMode
except ImportError:  # before the name moved, 4.4 among them
    from cutlass.cute.nvgpu.warpgroup import OperandMajorMode

K, MN = OperandMajorMode.K, OperandMajorMode.MN
M, DEPTH = 128, 128

MakeOp = Callable[[int, warpgroup.OperandSource, OperandMajorMode, OperandMajorMode], Any]
"""Make the MMA operation of n columns, for the source of A and the major modes of A and B."""


class Gemm:
    """One CTA, two warpgroups, one tile of M x n x DEPTH."""

    def __init__(
        self, op: MakeOp, n: int, *, a_major: OperandMajorMode, b_major: OperandMajorMode, registers: bool
    ) -> None:
        self.make_op = op
        self.tile = (M, n, DEPTH)
        self.a_major, self.b_major = a_major, b_major
        self.registers = registers

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: driver.CUstream) -> None:
        self.types = (a.element_type, b.element_type)
        source = warpgroup.OperandSource.RMEM if self.registers else warpgroup.OperandSource.SMEM
        op = self.make_op(self.tile[1], source, self.a_major, self.b_major)
        mma = cute.make_tiled_mma(cute.make_mma_atom(op), atom_layout_mnk=(2, 1, 1))
        row, column = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR
        a_layout = hopper_helpers.make_smem_layout_a(row if self.a_major == K else column, self.tile, a.element_type, 1)
        b_layout = hopper_helpers.make_smem_layout_b(row if self.b_major == K else column, self.tile, b.element_type, 1)
        stage = (None, None, 0)
        load = cpasync.CopyBulkTensorTileG2SOp()
        a_atom, a_coordinates = cpasync.make_tiled_tma_atom(
            load, a, cute.slice_(a_layout, stage), (self.tile[0], self.tile[2])
        )
        b_atom, b_coordinates = cpasync.make_tiled_tma_atom(
            load, b, cute.slice_(b_layout, stage), (self.tile[1], self.tile[2])
        )
        self.kernel(mma, a_atom, a_coordinates, b_atom, b_coordinates, c, a_layout, b_layout).launch(
            grid=(1, 1, 1), block=(256, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        a_atom: cute.CopyAtom,
        a: cute.Tensor,
        b_atom: cute.CopyAtom,
        b: cute.Tensor,
        c: cute.Tensor,
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        smem = utils.SmemAllocator()
        barrier = smem.allocate_array(cutlass.Int64, 1)
        a_type, b_type = self.types
        sA = smem.allocate_tensor(a_type, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(b_type, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
        one = cute.make_layout(1)
        gA = cute.local_tile(a, (self.tile[0], self.tile[2]), (0, 0))
        gB = cute.local_tile(b, (self.tile[1], self.tile[2]), (0, 0))
        to_a, from_a = cpasync.tma_partition(a_atom, 0, one, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
        to_b, from_b = cpasync.tma_partition(b_atom, 0, one, cute.group_modes(sB, 0, 2), cute.group_modes(gB, 0, 2))
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.barrier()
        if thread < 32:
            with cute.arch.elect_one():
                size = cute.size_in_bytes(a_type, cute.slice_(a_layout, (None, None, 0)))
                size += cute.size_in_bytes(b_type, cute.slice_(b_layout, (None, None, 0)))
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, size)
            cute.copy(a_atom, from_a, to_a[(None, 0)], tma_bar_ptr=barrier)
            cute.copy(b_atom, from_b, to_b[(None, 0)], tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)

        group = mma.get_slice(thread)
        # Fragments of operands in shared memory are per warpgroup, so their slice is the warpgroup's first thread's.
        tCsA = mma.get_slice(thread // 128 * 128).partition_A(sA)
        tCsB = mma.get_slice(thread // 128 * 128).partition_B(sB)
        tCrB = mma.make_fragment_B(tCsB)
        if cutlass.const_expr(self.registers):
            by_thread = group.partition_A(sA)
            tCrA = mma.make_fragment_A(by_thread)
            cute.basic_copy(by_thread, tCrA)
        else:
            tCrA = mma.make_fragment_A(tCsA)
        tCgC = group.partition_C(cute.local_tile(c, self.tile[:2], (0, 0)))
        acc = cute.make_rmem_tensor(tCgC.shape, mma.op.acc_dtype)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.gemm(mma, acc, tCrA[(None, None, k, 0)], tCrB[(None, None, k, 0)], acc)
            mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(acc)):
            tCgC[i] = acc[i]


def half(kind: type[cutlass.Numeric], acc: type[cutlass.Numeric]) -> MakeOp:
    return lambda n, source, a, b: warpgroup.MmaF16BF16Op(kind, acc, (64, n, 16), source, a, b)


def eighth(a_kind: type[cutlass.Numeric], b_kind: type[cutlass.Numeric], acc: type[cutlass.Numeric]) -> MakeOp:
    return lambda n, source, a, b: warpgroup.MmaF8Op(a_kind, b_kind, acc, (64, n, 32), source, a, b)


F16, BF16, F32 = cutlass.Float16, cutlass.BFloat16, cutlass.Float32
E4M3, E5M2 = cutlass.Float8E4M3FN, cutlass.Float8E5M2
TORCH = {
    F16: torch.float16,
    BF16: torch.bfloat16,
    F32: torch.float32,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
}
F16S = (half(F16, F32), (F16, F16, F32))
CASES = {
    # operation, types, columns, major modes of A and B, whether A is in registers
    "f16 K K": (*F16S, 192, "K", "K", False),
    "f16 K MN": (*F16S, 192, "K", "MN", False),
    "f16 MN K": (*F16S, 64, "MN", "K", False),
    "f16 MN MN": (*F16S, 64, "MN", "MN", False),
    "f16 registers MN": (*F16S, 64, "K", "MN", True),
    "bf16 registers K": (half(BF16, F32), (BF16, BF16, F32), 32, "K", "K", True),
    "f16 into f16": (half(F16, F16), (F16, F16, F16), 32, "K", "K", False),
    "e4m3 e5m2 registers": (eighth(E4M3, E5M2, F32), (E4M3, E5M2, F32), 32, "K", "K", True),
    "e5m2 e4m3 into f16": (eighth(E5M2, E4M3, F16), (E5M2, E4M3, F16), 32, "K", "K", False),
}


def operand(rows: int, kind: type[cutlass.Numeric], major: str, seed: int) -> torch.Tensor:
    """Small whole numbers, on the CPU, with the strides of its major mode."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 4, (rows, DEPTH), generator=generator).to(TORCH[kind])
    return values if major == "K" else values.t().contiguous().t()


def tensor(value: torch.Tensor, kind: type[cutlass.Numeric]) -> cute.Tensor:
    """A tensor of the DSL for one of torch; 8-bit types go as bytes."""
    raw = value.view(torch.uint8) if kind.width == 8 else value
    made = from_dlpack(raw, assumed_align=16)
    if kind.width == 8:
        made.element_type = kind
    return made


def main() -> None:
    from pytest_nvfp4.device.worker.simulator import simulate

    with simulate(arch="sm_90a") as session:
        for name, (op, (a_kind, b_kind, c_kind), n, a_major, b_major, registers) in CASES.items():
            a, b = operand(M, a_kind, a_major, 1), operand(n, b_kind, b_major, 2)
            on_a, on_b = a.cuda(), b.cuda()
            out = torch.zeros(M, n, dtype=TORCH[c_kind], device="cuda")
            gemm = Gemm(
                op, n, a_major=K if a_major == "K" else MN, b_major=K if b_major == "K" else MN, registers=registers
            )
            found = len(session.findings)
            gemm(tensor(on_a, a_kind), tensor(on_b, b_kind), from_dlpack(out), driver.CUstream(0))
            want = a.double() @ b.double().t()
            said = {
                "name": name,
                "n": n,
                "equal": bool((out.cpu().double() == want).all()),
                "findings": [finding.message for finding in session.findings[found:]],
                "counters": session.launches[-1].counters,
                "opcodes": sorted(
                    {
                        word
                        for word in (session.launches[-1].launch.module.ptx or "").split()
                        if word.startswith("wgmma.mma_async")
                    }
                ),
            }
            print("CASE " + json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

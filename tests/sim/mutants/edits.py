"""Mistakes in the Python of a kernel, and what a report has to say of them.

``python -m tests.sim.mutants.edits FOLDER`` compiles and runs a copy of the shipped sm100 kernel with each edit; one
line of JSON each: ``EDIT {...}``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.host import redirect
from pytest_nvfp4.problem import Group, Problem
from tests.sim.mutants.outcome import KERNELS


@dataclass(frozen=True)
class Edit:
    """One mistake.

    Attributes:
        name: What an author would call it.
        old, new: Text of the kernel, which stands there once (or, with ``number``, several times), and its replacement.
        kind: Of a finding; empty if nothing is found, and C is wrong.
        line: Part of the user's line that it names; empty for none.
        says: Words of the report, in which a kernel's author thinks.
        number: Which of several, from 0.
        slow: Not run by default.
        schedule: Of the run (see ``worker.SCHEDULES``).
    """

    name: str
    old: str
    new: str
    kind: str
    line: str
    says: tuple[str, ...] = ()
    number: int | None = None
    schedule: str = "eager"
    slow: bool = False

    def applied(self, text: str) -> str:
        """The kernel with the mistake. Raises ValueError if the kernel has not the text."""
        count = text.count(self.old)
        if count != 1 and (self.number is None or count <= self.number):
            raise ValueError(f"{self.name}: {self.old!r} stands {count} times in the kernel")
        pieces = text.split(self.old)
        at = (self.number or 0) + 1
        return self.old.join(pieces[:at]) + self.new + self.old.join(pieces[at:])


COPIES = """            cute.copy(s2t_sfa, tSsSFA[None, None, None, None, stage], tStSFA)
            cute.copy(s2t_sfb, tSsSFB[None, None, None, None, stage], {})
"""
FULL_WAIT = "cute.arch.mbarrier_wait(full_mbar + stage, parity)"
EMPTY_WAIT = "cute.arch.mbarrier_wait(empty_mbar + stage, parity)"
ACC_WAIT = "cute.arch.mbarrier_wait(acc_mbar, 0)"
GEMM = "cute.gemm(tiled_mma, tCtAcc, tCrA"
STORE = "cute.autovec_copy(tDrC, tDgC)"
COLUMNS = "TMEM_COLUMNS = max(32, 1 << (TILE_N + SF_COLUMNS - 1).bit_length())"

EDITS = (
    Edit(
        "expect_tx without the scale factors",
        "mbarrier_arrive_and_expect_tx(mbar, STAGE_BYTES)",
        "mbarrier_arrive_and_expect_tx(mbar, AB_STAGE_BYTES)",
        "deadlock",
        "mbarrier_arrive_and_expect_tx(mbar, AB_STAGE_BYTES)",
        (
            "warp 5 (mbarrier.arrive.expect_tx",
            "mbarrier_init(full_mbar + stage, 1)",
            "8192 bytes too many: 40960 arrived, expect_tx announced 32768",
            "warps 0-3",
        ),
    ),
    Edit(
        "forgot to wait for the stage",
        f"            {FULL_WAIT}\n",
        "",
        "race",
        "cute.copy(s2t_sfa, tSsSFA",
        ("in warp 4 of CTA", "SFA of group"),
        schedule="races",
    ),
    Edit(
        "forgot to wait for the accumulator",
        f"        {ACC_WAIT}\n",
        "",
        "uninitialised",
        "cute.copy(t2r, tDtAcc, tDrAcc)",
        ("CTA (0, 0, 0), warp 0", "TMEM column 0 was never written"),
    ),
    Edit(
        "scale factors over the accumulator",
        "sfa_tmem_ptr = tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtAcc)",
        "sfa_tmem_ptr = tmem_ptr + 64",
        "tmem",
        GEMM,
        ("SFA in TMEM columns [64, 68) overlaps the accumulator in [0, 128)", "warp 4"),
    ),
    Edit(
        "SFB copied to SFA's columns",
        COPIES.format("tStSFB"),
        COPIES.format("tStSFA"),
        "uninitialised",
        GEMM,
        ("SFB: lane 0 of TMEM column 144 was never written", "copy the scale factors to TMEM first"),
    ),
    Edit(
        "TMA writes A with another swizzle than the MMA reads",
        "cute.slice_(a_smem_layout_staged, stage), TILER_MNK, tiled_mma",
        "cute.slice_(sm100_utils.make_smem_layout_a(tiled_mma, (TILE_M, TILE_N, 128), AB_DTYPE, NUM_STAGES), stage), "
        "(TILE_M, TILE_N, 128), tiled_mma",
        "",
        "",
        ("where: rows 0-199 (all), columns 0-127 (all)",),
    ),
    Edit(
        "TMA warp leaves out the last k-tile",
        "for k_tile in cutlass.range(k_tiles, unroll=1)",
        "for k_tile in cutlass.range(k_tiles - 1, unroll=1)",
        "deadlock",
        FULL_WAIT,
        ("has left its loop and does not arrive", "warp 4", "mbarrier_init(full_mbar + stage, 1)"),
        slow=True,
    ),
    Edit(
        "MMA warp leaves out the last k-tile",
        "for _ in cutlass.range(k_tiles, unroll=1)",
        "for _ in cutlass.range(k_tiles - 1, unroll=1)",
        "in-flight",
        "cute.copy(tma_atom_sfb",
        (
            "nothing waited for the bytes",
            "mbarrier_init(full_mbar + stage, 1)",
            "compare the iterations of the loading warp",
        ),
    ),
    Edit(
        "no bound on the rows of C",
        "if x * TILE_M + thread < m:",
        "if thread < TILE_M:",
        "out-of-bounds",
        STORE,
        ("after the end of C of group 0", "CTA (1, 0, 0), warp 2", "the predicate that guards the last rows"),
    ),
    Edit(
        "bound on the rows of C off by one",
        "if x * TILE_M + thread < m:",
        "if x * TILE_M + thread <= m:",
        "out-of-bounds",
        STORE,
        ("lane 8", "0 bytes after the end of C of group 0", "CTA (1, 0, 0), warp 2"),
        slow=True,
    ),
    Edit(
        "forgot to give the stage back",
        "                tcgen05.commit(empty_mbar + stage)\n",
        "                pass\n",
        "deadlock",
        EMPTY_WAIT,
        ("where warp 5 waits", "mbarrier_init(empty_mbar + stage, 1)", "no warp ever arrives"),
    ),
    Edit(
        "forgot to commit the accumulator",
        "            tcgen05.commit(acc_mbar)\n",
        "            pass\n",
        "deadlock",
        ACC_WAIT,
        ("where warp 0 waits", "mbarrier_init(acc_mbar, 1)", "no warp ever arrives", "warps 4-5"),
        slow=True,
    ),
    Edit(
        "commit by the whole warp",
        "            with cute.arch.elect_one():\n                tcgen05.commit(empty_mbar + stage)\n",
        "            tcgen05.commit(empty_mbar + stage)\n",
        "multi-lane",
        "tcgen05.commit(empty_mbar + stage)",
        ("issued by 32 lanes of warp 4", "cute.arch.elect_one"),
    ),
    Edit(
        "too few TMEM columns",
        COLUMNS,
        "TMEM_COLUMNS = TILE_N",
        "tmem",
        "cute.copy(s2t_sfa, tSsSFA",
        ("TMEM columns [128, 132) do not lie inside one allocation; allocated: columns [0, 128)",),
        slow=True,
    ),
    Edit(
        "TMEM is not freed",
        "        cute.arch.dealloc_tmem(tmem_ptr, TMEM_COLUMNS)\n",
        "        pass\n",
        "tmem",
        "cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address)",
        ("columns [0, 256), allocated by warp 4, are not free", "the next CTA on the SM waits forever"),
    ),
    Edit(
        "TMEM is freed without waiting for the epilogue",
        "    cute.arch.sync_threads()\n    if warp == MMA_WARP:\n        fence_tcgen05_after_sync()",
        "    if warp == MMA_WARP:\n        fence_tcgen05_after_sync()",
        "tmem",
        "cute.copy(t2r, tDtAcc, tDrAcc)",
        ("were freed by warp 4 at edited",),
        slow=True,
    ),
    Edit(
        "too little shared memory",
        ".launch(grid=(num_tiles, 1, 1), block=(NUM_THREADS, 1, 1))",
        ".launch(grid=(num_tiles, 1, 1), block=(NUM_THREADS, 1, 1), smem=65536)",
        "out-of-bounds",
        "cute.copy(tma_atom_b",
        ("bytes [50176, 66560) of shared memory, and the kernel was launched with 65536", "the smem argument"),
    ),
    Edit(
        "full barriers count two arrivals",
        "mbarrier_init(full_mbar + stage, 1)",
        "mbarrier_init(full_mbar + stage, 2)",
        "deadlock",
        FULL_WAIT,
        (
            "never completes: 1 of 2 arrivals",
            "mbarrier_init(full_mbar + stage, 2)",
            "1 of 2 arrivals pending, all 36864 bytes arrived",
        ),
        slow=True,
    ),
    Edit(
        "the producer starts with parity 0",
        "        parity = Int32(1)\n",
        "        parity = Int32(0)\n",
        "deadlock",
        EMPTY_WAIT,
        ("where warp 5 waits for phase 0 (parity 0)", "before it fills the stage for the first time"),
    ),
    Edit(
        "stages are never wrapped",
        "            if stage == NUM_STAGES:\n",
        "            if stage == NUM_STAGES + 1:\n",
        "out-of-bounds",
        "cute.copy(tma_atom_b",
        ("bytes [99328, 115712) of shared memory, and the kernel was launched with 111616", "warp 5"),
        number=0,
        slow=True,
    ),
    Edit(
        "C's address from the column of B",
        "table[group, C], cute.AddressSpace.gmem",
        "table[group, B], cute.AddressSpace.gmem",
        "read-only",
        STORE,
        ("writes B of group 0, row 0, k 0, which is read-only",),
        slow=True,
    ),
    Edit(
        "m and n exchanged",
        "table[group, SFB], m, n, k)",
        "table[group, SFB], n, m, k)",
        "tensor map",
        "cute.copy(tma_atom_a",
        ("outside every tensor", "A of group 1", "the map's address, sizes or strides"),
    ),
    Edit(
        "tensor maps are not acquired",
        "            cpasync.fence_tma_desc_acquire(tensormap[i])\n",
        "            pass\n",
        "tensormap",
        "cute.copy(tma_atom_a",
        ("this CTA has not acquired it since", "fence.proxy.tensormap::generic.acquire"),
    ),
    Edit(
        "stages 16 bytes off their alignment",
        "    sA = smem.allocate_tensor(\n        AB_DTYPE, a_smem_layout_staged.outer, byte_alignment=1024,",
        "    smem.allocate_array(Int32, 4)\n"
        "    sA = smem.allocate_tensor(\n        AB_DTYPE, a_smem_layout_staged.outer, byte_alignment=16,",
        "misaligned",
        "cute.copy(tma_atom_a",
        ("shared address 0x650 is not a multiple of 128",),
        slow=True,
    ),
    Edit(
        "the CTA map counts tiles of m rounded down",
        "tiles_m = ceil_div(Int32(table[low, M]), TILE_M)",
        "tiles_m = Int32(table[low, M]) // TILE_M",
        "out-of-bounds",
        STORE,
        ("before C of group 1",),
        slow=True,
    ),
    Edit(
        "the accumulator is not cleared",
        "        tiled_mma.set(tcgen05.Field.ACCUMULATE, False)\n",
        "        tiled_mma.set(tcgen05.Field.ACCUMULATE, True)\n",
        "uninitialised",
        GEMM,
        ("accumulates: lane 0 of TMEM column 0 was never written", "must not accumulate"),
        slow=True,
    ),
    Edit(
        "the first epilogue warp is warp 1",
        "    if warp < EPILOGUE_WARPS:\n",
        "    if warp > 0 and warp < EPILOGUE_WARPS:\n",
        "never-written",
        "",
        ("C of group 0: 8192 of 25600 elements", "C of group 0, row 0, column 0 to C of group 0, row 31, column 127"),
    ),
)


def main() -> None:
    folder = Path(sys.argv[1])
    chosen = sys.argv[2:]
    os.environ.update(redirect.environment(folder, arch="sm_100a"))
    from tests.sim.mutants.worker import Bench

    kernel = (KERNELS / "sm100.py").read_text()
    # Ragged, and k wraps the ring of three stages.
    problem = Problem("edits", (Group(200, 128, 1024), Group(72, 256, 1280)), seed=7)
    for number, edit in enumerate(EDITS):
        if chosen and edit.name not in chosen:
            continue
        said: dict[str, object] = {"name": edit.name}
        bench = None
        try:
            path = folder / f"edited_{number}.py"
            path.write_text(edit.applied(kernel))
            bench = Bench(path, arch="sm_100a", folder=folder, problem=problem, family="nan_pad")
            said |= bench.run(edit.schedule)
            said.pop("counters")
        except Exception:
            said["error"] = traceback.format_exc()
        finally:
            if bench is not None:
                bench.simulation.close()
        print("EDIT " + json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

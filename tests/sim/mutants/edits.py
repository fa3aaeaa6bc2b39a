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

from pytest_nvfp4.problem import Group, Problem
from pytest_nvfp4.toolchain import hostside
from tests.sim.mutants.outcome import KERNELS


@dataclass(frozen=True)
class Edit:
    """One mistake.

    Attributes:
        name: What an author would call it.
        old, new: Text of the kernel, which stands there once (or, with ``number``, several times), and its replacement.
        kind: Of the first finding.
        line: Part of the user's line that is named.
        says: Words of the report, in which a kernel's author thinks.
        number: Which of several, from 0.
        more: Further replacements that belong to the mistake.
    """

    name: str
    old: str
    new: str
    kind: str
    line: str
    says: tuple[str, ...] = ()
    number: int | None = None
    more: tuple[tuple[str, str], ...] = ()

    def applied(self, text: str) -> str:
        """The kernel with the mistake. Raises ValueError if the kernel has not the text."""
        count = text.count(self.old)
        if count != 1 and (self.number is None or count <= self.number):
            raise ValueError(f"{self.name}: {self.old!r} stands {count} times in the kernel")
        pieces = text.split(self.old)
        at = (self.number or 0) + 1
        text = self.old.join(pieces[:at]) + self.new + self.old.join(pieces[at:])
        for old, new in self.more:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} stands {text.count(old)} times in the kernel")
            text = text.replace(old, new)
        return text


EDITS = (
    Edit(
        "expect_tx without the scale factors",
        "mbarrier_arrive_and_expect_tx(mbar, STAGE_BYTES)",
        "mbarrier_arrive_and_expect_tx(mbar, AB_STAGE_BYTES)",
        "",
        "",
    ),
    Edit(
        "forgot to wait for the stage",
        "            cute.arch.mbarrier_wait(full_mbar + stage, parity)\n",
        "",
        "",
        "",
    ),
    Edit("forgot to wait for the accumulator", "        cute.arch.mbarrier_wait(acc_mbar, 0)\n", "", "", ""),
    Edit(
        "scale factors over the accumulator",
        "sfa_tmem_ptr = tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtAcc)",
        "sfa_tmem_ptr = tmem_ptr + 64",
        "",
        "",
    ),
    Edit(
        "SFB copied to SFA's columns",
        "parity)\n            fence_tcgen05_after_sync()\n            cute.copy(s2t_sfa, tSsSFA[None, None, None, None, stage], tStSFA)\n            cute.copy(s2t_sfb, tSsSFB[None, None, None, None, stage], tStSFB)",
        "parity)\n            fence_tcgen05_after_sync()\n            cute.copy(s2t_sfa, tSsSFA[None, None, None, None, stage], tStSFA)\n            cute.copy(s2t_sfb, tSsSFB[None, None, None, None, stage], tStSFA)",
        "",
        "",
    ),
    Edit(
        "N of the MMA is 64",
        "(TILE_M, TILE_N, MMA_K), tcgen05.CtaGroup.ONE",
        "(TILE_M, 64, MMA_K), tcgen05.CtaGroup.ONE",
        "",
        "",
    ),
    Edit(
        "TMA warp leaves out the last k-tile",
        "for k_tile in cutlass.range(k_tiles, unroll=1)",
        "for k_tile in cutlass.range(k_tiles - 1, unroll=1)",
        "",
        "",
    ),
    Edit(
        "MMA warp leaves out the last k-tile",
        "for _ in cutlass.range(k_tiles, unroll=1)",
        "for _ in cutlass.range(k_tiles - 1, unroll=1)",
        "",
        "",
    ),
    Edit("no bound on the rows of C", "if x * TILE_M + thread < m:", "if thread < TILE_M:", "", ""),
    Edit("bound on the rows of C off by one", "if x * TILE_M + thread < m:", "if x * TILE_M + thread <= m:", "", ""),
    Edit(
        "forgot to give the stage back",
        "                tcgen05.commit(empty_mbar + stage)\n",
        "                pass\n",
        "",
        "",
    ),
    Edit("forgot to commit the accumulator", "            tcgen05.commit(acc_mbar)\n", "            pass\n", "", ""),
    Edit(
        "commit by the whole warp",
        "            with cute.arch.elect_one():\n                tcgen05.commit(empty_mbar + stage)\n",
        "            tcgen05.commit(empty_mbar + stage)\n",
        "",
        "",
    ),
    Edit(
        "TMEM columns no power of two",
        "TMEM_COLUMNS = max(32, 1 << (TILE_N + SF_COLUMNS - 1).bit_length())",
        "TMEM_COLUMNS = TILE_N + SF_COLUMNS",
        "",
        "",
    ),
    Edit(
        "too few TMEM columns",
        "TMEM_COLUMNS = max(32, 1 << (TILE_N + SF_COLUMNS - 1).bit_length())",
        "TMEM_COLUMNS = TILE_N",
        "",
        "",
    ),
    Edit("TMEM is not freed", "        cute.arch.dealloc_tmem(tmem_ptr, TMEM_COLUMNS)\n", "        pass\n", "", ""),
    Edit(
        "TMEM is freed without waiting for the epilogue",
        "    cute.arch.sync_threads()\n    if warp == MMA_WARP:\n        fence_tcgen05_after_sync()",
        "    if warp == MMA_WARP:\n        fence_tcgen05_after_sync()",
        "",
        "",
    ),
    Edit(
        "too little shared memory",
        ".launch(grid=(num_tiles, 1, 1), block=(NUM_THREADS, 1, 1))",
        ".launch(grid=(num_tiles, 1, 1), block=(NUM_THREADS, 1, 1), smem=65536)",
        "",
        "",
    ),
    Edit(
        "full barriers count two arrivals",
        "mbarrier_init(full_mbar + stage, 1)",
        "mbarrier_init(full_mbar + stage, 2)",
        "",
        "",
    ),
    Edit("the producer starts with parity 0", "        parity = Int32(1)\n", "        parity = Int32(0)\n", "", ""),
    Edit(
        "stages are never wrapped",
        "            if stage == NUM_STAGES:\n",
        "            if stage == NUM_STAGES + 1:\n",
        "",
        "",
        number=0,
    ),
    Edit(
        "C's address from the column of B",
        "table[group, C], cute.AddressSpace.gmem",
        "table[group, B], cute.AddressSpace.gmem",
        "",
        "",
    ),
    Edit("m and n exchanged", "table[group, SFB], m, n, k)", "table[group, SFB], n, m, k)", "", ""),
    Edit(
        "tensor maps are not acquired",
        "            cpasync.fence_tma_desc_acquire(tensormap[i])\n",
        "            pass\n",
        "",
        "",
    ),
    Edit(
        "A without its swizzle",
        "        AB_DTYPE, a_smem_layout_staged.outer, byte_alignment=1024, swizzle=a_smem_layout_staged.inner\n",
        "        AB_DTYPE, a_smem_layout_staged.outer, byte_alignment=1024\n",
        "",
        "",
    ),
    Edit(
        "stage 16 bytes off its alignment",
        "    sA = smem.allocate_tensor(\n        AB_DTYPE, a_smem_layout_staged.outer, byte_alignment=1024,",
        "    smem.allocate_array(Int32, 4)\n    sA = smem.allocate_tensor(\n        AB_DTYPE, a_smem_layout_staged.outer, byte_alignment=16,",
        "",
        "",
    ),
    Edit(
        "the CTA map counts tiles of m rounded down",
        "tiles_m = ceil_div(Int32(table[low, M]), TILE_M)",
        "tiles_m = Int32(table[low, M]) // TILE_M",
        "",
        "",
    ),
    Edit(
        "the accumulator is not cleared",
        "        tiled_mma.set(tcgen05.Field.ACCUMULATE, False)\n",
        "        tiled_mma.set(tcgen05.Field.ACCUMULATE, True)\n",
        "",
        "",
    ),
    Edit(
        "the first epilogue warp is warp 1",
        "    if warp < EPILOGUE_WARPS:\n",
        "    if warp > 0 and warp < EPILOGUE_WARPS:\n",
        "",
        "",
    ),
)


def main() -> None:
    folder = Path(sys.argv[1])
    chosen = sys.argv[2:]
    os.environ.update(hostside.environment(folder, arch="sm_100a"))
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
            said |= bench.run("eager")
            said.pop("counters")
        except Exception:
            said["error"] = traceback.format_exc()
        finally:
            if bench is not None:
                bench.simulation.close()
        print("EDIT " + json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

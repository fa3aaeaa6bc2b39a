"""The reports of others that have a twin here, and what must be found in it.

A twin is a small kernel of our own with the defect of a public report, and the same kernel without it. The table does
not need the DSL; the kernels are in the modules of ``LAUNCHES``.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REPORTS", "Report"]


@dataclass(frozen=True)
class Report:
    """A report, its twin's defect, and the finding.

    Attributes:
        name: Repository and number.
        seen: What the reporters saw.
        defect: The defect of the twin.
        kind: Kind of the finding: ``race``, ``deadlock``, ``proxy``, ...
        later: Part of the line that the finding names; of a race, the line of the access that comes too soon.
        earlier: Of a race, part of the line that it should have waited for.
        warnings: Whether it is a warning that ``--nvfp4-race-warnings`` asks for.
        schedules: Random schedules after the eager one, as ``--nvfp4-schedules`` adds them.
        why_not: Why nothing is found, if nothing is; then there is no kind and no line.
    """

    name: str
    seen: str
    defect: str
    kind: str
    later: str
    earlier: str = ""
    warnings: bool = False
    schedules: int = 0
    why_not: str = ""


REPORTS = (
    Report(
        "NVIDIA/cutlass#3643",
        "NVFP4 example with CTA pairs: on a B200 29 of 200 runs wrong, then a launch failure; synccheck: missing wait",
        "the second CTA's scale factors of B are counted by its own barrier, which nobody waits for",
        "race",
        "ptx32(COPY, column",
        "cute.copy(load, *cpasync.group_bulk_copy_modes(x[rank, None], sfb)",
    ),
    Report(
        "NVIDIA/cutlass#3647",
        "the second cause of #3643: arrives at the other CTA's barrier with the scope of the CTA",
        "cp.async writes of the second CTA are released with scope .cta to a barrier of the first",
        "race",
        "ptx32(COPY, column",
        "cute.copy(copy, mine.partition_S(x[rank, None]), mine.partition_D(sfb))",
    ),
    Report(
        "NVIDIA/cutlass#3165",
        "grouped block-scaled GEMM with CTA pairs: illegal address in the TMA load; racecheck: about 1,600 hazards "
        "where tensor maps are updated",
        "both CTAs of a pair rewrite one tensor map, each for its next group, while the other loads with it",
        "race",
        "manager.init_tensormap_from_atom(atom, in_gmem, 0)",
        "manager.update_tensormap((matrix,), (atom,), (in_gmem,), 0, (in_gmem,))",
    ),
    Report(
        "NVIDIA/cutlass#3316",
        "tutorials 04 and 05 with CTA pairs: racecheck: a potential hazard at the allocator's word of shared memory",
        "tcgen05.alloc.cta_group::2 before anything shows that the peer CTA has started",
        "race",
        "arch.alloc_tmem(COLUMNS, place.iterator, is_two_cta=True)",
    ),
    Report(
        "NVIDIA/cutlass#3597",
        "example 93 (low-latency GQA): 2,193 wrong values and eight racecheck hazards in one run; counts vary",
        "the next reduction writes the scratch that other warps still read",
        "race",
        "scratch[warp] = x[row, thread]",
        "maximum = cutlass.max(maximum, scratch[i])",
    ),
    Report(
        "NVIDIA/cutlass#3598",
        "example 93: 473 wrong values in seven cases of eight CTAs; racecheck: no hazard",
        "a mailbox is cleared after the barrier behind which the peer writes to it",
        "race",
        "mailbox[thread] = Int32(0)",
        "ptx32(STORE, (mailbox.iterator + thread).toint(), rank ^ 1, x[rank, thread])",
    ),
    Report(
        "NVIDIA/cutlass#2626",
        "example 77 (FMHA backward): illegal memory accesses now and then on B200; racecheck: a race of a write "
        "and a read; synccheck: missing wait",
        "one of two loaded inputs is never waited for (the report names no line; the twin follows synccheck's words)",
        "race",
        "y[0, thread] = queries[thread] - sums[thread]",
        "cute.copy(load, *cpasync.group_bulk_copy_modes(x[1, None], sums)",
    ),
    Report(
        "NVIDIA/cutlass#2760",
        "grouped GEMMs for SM90 with PDL, on an H200: wrong now and then, hard to reproduce",
        "the kernel never executes griddepcontrol.wait before it reads its table of groups",
        "race",
        "row = table[block]",
        "table[thread] = ROWS - 1 - thread",
    ),
    Report(
        "flashinfer-ai/flashinfer#4126",
        "radix top-k over several CTAs: rows keep the wrong set; racecheck: no hazard (it sees shared memory only)",
        "a CTA clears the histogram for the next round while others still read it",
        "race",
        "below += y[0, i]",
        "y[0, thread] = Int32(0)",
        schedules=8,
    ),
    Report(
        "flashinfer-ai/flashinfer#4409",
        "FP8 groupwise GEMM, small batch: 0 to 3 wrong results in 100 equal runs, one row of one tile each; the "
        "kernel is no longer used there, at a cost of 10-40 %",
        "the stage of scale factors is published before its cp.async has landed",
        "race",
        "y[i, lane] = factors[4 * lane, i % 2]",
        "cute.copy(copy, mine.partition_S(x[i, None]), mine.partition_D(factors",
    ),
    Report(
        "flashinfer-ai/flashinfer#2708",
        "FP4 GEMM on SM120: NaN or garbage in blocks of 128 under load",
        "the host launches with PDL, and both griddepcontrol instructions were compiled to nothing",
        "race",
        "row = table[block]",
        "table[thread] = ROWS - 1 - thread",
    ),
    Report(
        "sgl-project/sglang#32954",
        "GEMM in CuTe DSL with CTA pairs: Xid 13, CTA not present, under PDL and CUDA graphs",
        "a CTA ends while its peer still arrives at its barrier",
        "race",
        "arch.mbarrier_arrive(empty + 1, 1)",
    ),
    Report(
        "ggml-org/llama.cpp#22522",
        "PDL for its CUDA kernels; a kernel added later (#23690) had no wait: garbled output on an RTX 5090",
        "a transform in place does not wait for the kernel that writes its input",
        "race",
        "a, b = y[block, 2 * thread], y[block, 2 * thread + 1]",
        "y[block, thread] = x[block, thread] * 3",
    ),
    Report(
        "facebookexperimental/triton#1121",
        "a tracking issue: missing arrives, wrong counts and wrong phases hang without a word",
        "the consumer never releases a stage",
        "deadlock",
        "arch.mbarrier_wait(empty + i % 2",
    ),
    Report(
        "facebookexperimental/triton#1121, counts",
        "the same",
        "the barrier of a full stage expects two arrives and gets one",
        "deadlock",
        "arch.mbarrier_wait(full + i % 2",
    ),
    Report(
        "facebookexperimental/triton#1121, phases",
        "the same",
        "the producer's first wait is for the parity of a phase that has not begun to end",
        "deadlock",
        "arch.mbarrier_wait(empty + i % 2",
    ),
    Report(
        "NVIDIA/cutlass#3324",
        "mixed TMA and cp.async with CTA pairs: the leader may see a full stage before the peer's data",
        "a warp waits for its CTA's copies and passes that on with scope .cta",
        "race",
        "y[0, thread] = ptx32(LOAD, (factors.iterator",
        "cute.copy(copy, mine.partition_S(x[0, None]), mine.partition_D(factors))",
    ),
    Report(
        "NVIDIA/cccl#10964",
        "RLE look-ahead: a possible race with one stage, seen by reading; all warps wait now, up to 1.5 % slower",
        "a warp that writes nothing skips the wait for the stage, and its arrives count in the wrong phase",
        "deadlock",
        "arch.mbarrier_arrive(full)",
    ),
    Report(
        "NVIDIA/cutlass#2502",
        "example 77 (MLA): wrong results with one stage fewer for PV",
        "as many groups of cp.async may be in flight as have been issued, so the wait waits for none",
        "race",
        "total += ring[TILE - 1 - thread, i % STAGES]",
        "cute.copy(copy, mine.partition_S(x[i, None]), mine.partition_D(ring[None, i]))",
    ),
    Report(
        "NVIDIA/cutlass#1326",
        "multistage GEMM with an epilogue through shared memory: random results",
        "the epilogue writes a stage that a last prefetch still fills",
        "race",
        "stages[thread, 1] = total",
        "cute.copy(copy, mine.partition_S(x[i, None]), mine.partition_D(stages",
    ),
    Report(
        "sgl-project/sglang#37287",
        "fused-A GEMM in CuTe DSL: partial sums of split-K lie over stage 0 of A; a barrier was missing",
        "partial sums overwrite the operand that other warps still read",
        "race",
        "partial[thread] = total",
        "total = operand[thread] + operand[TILE - 1 - thread]",
    ),
    Report(
        "deepseek-ai/DeepEP#657",
        "a copy through two stages waits for one store too few",
        "wait_group.read allows one group more than there are other stages",
        "race",
        "cute.copy(load, *cpasync.group_bulk_copy_modes(x[i, None], stages",
        "cute.copy(store, *cpasync.group_bulk_copy_modes(stages",
    ),
    Report(
        "NVIDIA/cudnn-frontend#784",
        "HSTU epilogue: 120 bf16 elements differ between two launches",
        "no fence.proxy.async between the threads' writes and the TMA store",
        "proxy",
        "cute.copy(store, *cpasync.group_bulk_copy_modes(outputs, y[0, None]))",
        "outputs[thread] = x[0, thread] * 2",
    ),
    Report(
        "NVIDIA/cutlass#2835",
        "example 77: the epilogue reads the address of TMEM too early if there are no KV tiles",
        "no barrier between the allocation and the read of its address",
        "race",
        "y[0, thread] = x[0, thread] + place[0]",
        "arch.alloc_tmem(COLUMNS, place.iterator)",
    ),
    Report(
        "flashinfer-ai/flashinfer#5335",
        "chunked GDN: a stage of TMEM is released while its tcgen05.ld is in flight",
        "tcgen05.wait::ld behind the arrive that releases the columns, not before it",
        "race",
        "ptx32(FILL, column, x[i, lane])",
        "value = ptx32(LOAD, column)",
    ),
    Report(
        "deepseek-ai/DeepGEMM#430",
        "grouped GEMM over k: a switch of groups rewrites tensor maps of loads in flight",
        "a CTA rewrites its own map before its loads with it have ended",
        "race-warning",
        "manager.update_tensormap((matrix,), (atom,), (in_gmem,), 0, (in_gmem,))",
        "cute.copy(atom, gX[None, 0, 0], sX[None, i]",
    ),
    Report(
        "deepseek-ai/DeepEP#642",
        "a TMA load behind a poll of a flag, without a proxy fence",
        "no fence.proxy.async between the acquired flag and the bulk copy",
        "proxy",
        "cute.copy(load, *cpasync.group_bulk_copy_modes(y[0, None], tile)",
        "y[0, thread] = x[0, thread]",
    ),
    Report(
        "NVIDIA/cccl#5456",
        "merge sort: illegal instructions and addresses now and then on an H100, in applications only",
        "griddepcontrol.wait behind the read that it should guard; the kernel before lets no dependent start early",
        "race",
        "row = table[block]",
        "table[thread] = ROWS - 1 - thread",
    ),
    Report(
        "facebookexperimental/triton#1024",
        "cluster launch control: the odd CTAs of clusters hang",
        "the answer goes to the barrier of every CTA, and only the first expects its bytes",
        "deadlock",
        "arch.mbarrier_wait(answered, 0)",
    ),
    Report(
        "deepseek-ai/DeepGEMM#429",
        "grouped GEMM on an H100 hangs if the tiles of a group are no multiple of the cluster",
        "the CTAs of a cluster have different numbers of k tiles, and each waits for the other's arrives",
        "deadlock",
        "arch.mbarrier_arrive(empty, rank ^ 1)",
    ),
    Report(
        "vllm-project/vllm#26026",
        "CUTLASS MLA hangs under load",
        "warps without work arrive at a named barrier again before its earlier use is complete",
        "race",
        "arch.barrier_arrive(barrier_id=1",
    ),
    Report(
        "NVIDIA/cutlass#3652",
        "example 93: lanes of a tcgen05.ld whose registers nobody reads are not waited for before the deallocation",
        "no tcgen05.wait::ld between a load and the barrier behind which its columns are freed",
        "race-warning",
        "arch.dealloc_tmem(arch.retrieve_tmem_ptr",
        "ptx32(LOAD, column + (32 << 16))",
        warnings=True,
    ),
    Report(
        "NVIDIA/cutlass#3435",
        "CTA pairs: a launch failure in 25 of 25 runs, gone with a cluster barrier between allocation and deallocation",
        "a CTA frees the pair's tensor memory before the peer's allocation is known to have returned",
        "",
        "",
        why_not="the simulator allocates for both CTAs at once, and orders no deallocation behind the peer's alloc",
    ),
)

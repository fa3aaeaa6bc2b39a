"""What the simulator and the hardware both count: which counters mean the same, and how exactly they must agree.

Names are those of Nsight Compute; all of them are in libnvperf_host's lists of GH100 (``sm_90``) and GB100
(``sm_100``), whose descriptions say which instructions (SASS) each one counts. The simulator executes PTX, so only
what ptxas keeps can agree: it neither adds nor drops TMA operations, matrix instructions, accesses of TMEM and stores.
Loads it may move behind a branch, split or merge: in the grouped GEMM for Hopper a load of the table of tiles moves
behind a branch, so that each CTA executes 7 fewer on an H200; all other kernels have equal numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Exactness = Literal["exact", "as compiled", "scaled", "not comparable"]
"""``exact``: equal, or one of the two is wrong. ``as compiled``: equal unless ptxas changed the loads. ``scaled``:
proportional, in a unit that the vendor does not document. ``not comparable``: shown side by side, but they count
different things."""
Chip = Literal["sm_90", "sm_100"]
Alternatives = tuple[tuple[str, ...], ...]
"""Sums of metrics, of which the first whose metrics are all known is used."""

WHILE_COUNTING: Final = {
    "tma.load.delivered_sectors": "tma.load.requests",
    "bulk.load.delivered_sectors": "bulk.load.requests",
    "tma.store.sectors": "tma.store.requests",
}
"""Counters that are missing, rather than 0, where the simulator did not count them for these requests."""
UNALIGNED: Final = "tma.load.unaligned_requests"
"""With such requests the sectors of TMA loads are unknown: of rows of 128 bytes whose pitch is not a multiple of 32, an
H200 reads 5 sectors (a pitch of 272 bytes) or 5.5 on average (144 bytes), also where rows begin at a sector."""


@dataclass(frozen=True, slots=True)
class SharedCounter:
    """A quantity that both count.

    Attributes:
        name: Its name in results.
        title: Its name in tables.
        counted: Factors and names of the simulator's counters, which are added; ``ctas`` and ``warps`` are those of
            the grid.
        measured: For each chip the metrics; a chip that is missing has no such metric.
        exactness: How they must agree.
        why: What both count, or why they differ.
        seen: For each chip, on which device and with what outcome the two were compared; a chip that is missing was not
            measured.
    """

    name: str
    title: str
    counted: tuple[tuple[int, str], ...]
    measured: Mapping[Chip, Alternatives]
    exactness: Exactness
    why: str
    seen: Mapping[Chip, str]


_EQUAL_ON_AN_H200 = frozenset(
    (
        "ctas", "warps", "tma.loads", "tma.stores", "tma.load_bytes", "tma.store_bytes", "wgmma", "wgmma.operations",
        "global.loads", "global.load_sectors", "global.stores", "global.store_sectors", "cp_async", "cp_async_sectors",
        "shared.loads", "shared.stores", "shared.load_wavefronts", "shared.store_wavefronts", "barriers",
    )
)  # fmt: skip
"""Counters that were equal in all launches of the shipped Hopper kernels that have them, loads but for one kernel."""


def _sums(*names: str) -> tuple[tuple[int, str], ...]:
    return tuple((1, name) for name in names)


def _counter(
    name: str,
    title: str,
    counted: tuple[tuple[int, str], ...],
    both: Alternatives = (),
    *,
    sm_90: Alternatives = (),
    sm_100: Alternatives = (),
    exactness: Exactness = "exact",
    why: str,
) -> SharedCounter:
    measured: dict[Chip, Alternatives] = {}
    if both or sm_90:
        measured["sm_90"] = sm_90 or both
    if both or sm_100:
        measured["sm_100"] = sm_100 or both
    seen: dict[Chip, str] = {"sm_90": "equal on an H200"} if name in _EQUAL_ON_AN_H200 else {}
    return SharedCounter(name, title, counted, measured, exactness, why, seen)


_SASS = "smsp__sass_inst_executed_op"
_TO_L1 = "l1tex__m_xbar2l1tex_read"
_FROM_L1 = "l1tex__m_l1tex2xbar_write"
_PATH = "sm__ops_path_tensor"
_TENSOR = "sm__inst_executed_pipe_tensor_subpipe_hmma_op_utchmma_utcqmma_utcomma_scope"
_KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
_FLOAT_KINDS = tuple(kind for kind in _KINDS if kind != "i8")


def _mma(kinds: tuple[str, ...], groups: tuple[int, ...] = (1, 2)) -> tuple[tuple[int, str], ...]:
    return tuple((1, f"mma.{kind}.{group}cta") for kind in kinds for group in groups)


_LAUNCH: tuple[SharedCounter, ...] = (
    _counter(
        "ctas", "CTAs", _sums("ctas"), (("launch__grid_size",), ("sm__ctas_launched.sum",)), why="CTAs of the grid"
    ),
    _counter("warps", "warps", _sums("warps"), (("smsp__warps_launched.sum",),), why="warps of all CTAs"),
    _counter(
        "instructions", "instructions", _sums("instructions"), (("smsp__inst_executed.sum",),),
        exactness="not comparable", why="PTX instructions beside SASS instructions; waits repeat as long as they last",
    ),
)  # fmt: skip

_TMA: tuple[SharedCounter, ...] = (
    _counter(
        "tma.loads", "TMA loads", _sums("tma.load.requests", "bulk.load.requests"), ((f"{_SASS}_tma_ld.sum",),),
        why="UTMALDG and UBLKCP from global memory, one for each copy",
    ),
    _counter(
        "tma.stores", "TMA stores", _sums("tma.store.requests", "bulk.store.requests"), ((f"{_SASS}_tma_st.sum",),),
        why="UTMASTG and UBLKCP to global memory, one for each copy",
    ),
    _counter(
        "tma.reductions", "TMA reductions", _sums("tma.reduce.requests", "bulk.reduce.requests"),
        ((f"{_SASS}_tma_red.sum",),), why="UTMAREDG and UBLKRED, one for each copy",
    ),
    _counter(
        "tma.cluster_copies", "bulk copies to other CTAs", _sums("bulk.cluster.requests"),
        ((f"{_SASS}_dshared_tma_st.sum", f"{_SASS}_dshared_tma_red.sum"),),
        why="UBLKCP and UBLKRED from shared memory to shared memory",
    ),
    _counter(
        "tma.load_bytes", "TMA bytes from L2",
        ((32, "tma.load.delivered_sectors"), (32, "bulk.load.delivered_sectors")),
        ((f"{_TO_L1}_bytes_mem_global_op_tma_ld.sum",),),
        why="32-byte sectors of whole boxes, outside the tensor too, once for each destination of a multicast",
    ),
    _counter(
        "tma.store_bytes", "TMA bytes to L2", ((32, "tma.store.sectors"), (32, "bulk.store.sectors")),
        ((f"{_FROM_L1}_bytes_mem_global_op_tma_st.sum",),), why="sectors of 32 bytes of each row inside the tensor",
    ),
    _counter(
        "dram.load_bytes", "different bytes of TMA loads", _sums("tma.load.unique_bytes"), (("dram__bytes_read.sum",),),
        exactness="not comparable", why="what L2 already holds is not read from DRAM, and other accesses read it too",
    ),
)  # fmt: skip

_TENSOR_CORE: tuple[SharedCounter, ...] = (
    _counter(
        "wgmma", "wgmma", ((4, "wgmma.instructions"),),
        sm_90=((f"{_SASS}_shared_gmma.sum",), ("sm__inst_executed_pipe_tensor_op_gmma.sum",)),
        why="GMMA instructions; each of the four warps of a warpgroup issues one",
    ),
    _counter(
        "wgmma.operations", "operations of wgmma and mma", ((2, "wgmma.macs"), (2, "mma.macs")),
        sm_90=(tuple(
            f"{_PATH}_{kind}.sum"
            for kind in ("src_fp16", "src_bf16_dst_fp32", "src_fp8", "src_tf32_dst_fp32", "src_int8")
        ),),
        why="multiplications and additions of dense matrix instructions, padding included",
    ),
    _counter(
        "mma", "tcgen05.mma", _mma(_KINDS), sm_100=((f"{_SASS}_utcmma.sum",),),
        why="UTC*MMA instructions; one thread issues each",
    ),
    _counter(
        "mma.1cta", "tcgen05.mma of one CTA", _mma(_FLOAT_KINDS, (1,)), sm_100=((f"{_TENSOR}_1cta.sum",),),
        why="UTCHMMA, UTCQMMA and UTCOMMA with .1CTA",
    ),
    _counter(
        "mma.2cta", "tcgen05.mma of a pair", _mma(_FLOAT_KINDS, (2,)), sm_100=((f"{_TENSOR}_2cta.sum",),),
        exactness="scaled", why="UTC*MMA with .2CTA; whether each SM of the pair counts it is not documented",
    ),
    _counter(
        "mma.integer", "tcgen05.mma of integers", _mma(("i8",)),
        sm_100=((
            "sm__inst_executed_pipe_tensor_subpipe_imma_op_utcimma_scope_1cta.sum",
            "sm__inst_executed_pipe_tensor_subpipe_imma_op_utcimma_scope_2cta.sum",
        ),),
        exactness="scaled", why="UTCIMMA; whether each SM of a pair counts .2CTA is not documented",
    ),
    _counter(
        "mma.operations", "operations of tcgen05.mma", _sums("mma.flops"),
        sm_100=((
            f"{_PATH}_src_fp4_dst_fp32.sum", f"{_PATH}_src_fp4_fp6_fp8_dst_fp32.sum",
            f"{_PATH}_src_fp4_fp6_fp8_dst_fp16.sum", f"{_PATH}_src_fp16_dst_fp32.sum", f"{_PATH}_src_fp16_dst_fp16.sum",
            f"{_PATH}_src_bf16_dst_fp32.sum", f"{_PATH}_src_tf32_dst_fp32.sum", f"{_PATH}_src_int8.sum",
        ),),
        why="multiplications and additions of dense matrix instructions, padding included",
    ),
    _counter(
        "scale_copies", "tcgen05.cp (scale factors)", _sums("tcgen05.cp.instructions"),
        sm_100=((f"{_SASS}_utccp.sum",),), why="UTCCP instructions; one thread issues each",
    ),
    _counter(
        "scale_copy_bytes", "bytes of tcgen05.cp", _sums("tcgen05.cp.bytes"),
        sm_100=(("sm__mem_tensor_writes_op_utccp.sum",),),
        exactness="scaled", why="writes to TMEM, whose width is not documented; .warpx4 writes every byte four times",
    ),
    _counter(
        "scale_reads", "MMAs that read scale factors",
        _mma(("mxf8f6f4", "mxf4", "mxf4nvf4")), sm_100=(("sm__mem_tensor_reads_op_utcmma_matrix_a_sp_sf.sum",),),
        exactness="scaled", why="reads of A, metadata and scale factors in TMEM, whose width is not documented",
    ),
    _counter(
        "tensor_instructions", "MMAs, copies and commits",
        (*_mma(_KINDS), *_sums("tcgen05.cp.instructions", "tcgen05.commits")),
        sm_100=(("sm__inst_executed_pipe_tc.sum",),),
        exactness="scaled", why="UTC*MMA, UTCCP, UTCBAR and UTCSHIFT; what a pair counts is not documented",
    ),
)  # fmt: skip

_TMEM: tuple[SharedCounter, ...] = (
    _counter(
        "tmem.loads", "tcgen05.ld", _sums("tcgen05.ld.instructions"), sm_100=((f"{_SASS}_tmem_ldt.sum",),),
        why="LDT and LDTM instructions of warps",
    ),
    _counter(
        "tmem.stores", "tcgen05.st", _sums("tcgen05.st.instructions"), sm_100=((f"{_SASS}_tmem_stt.sum",),),
        why="STT and STTM instructions of warps",
    ),
    _counter(
        "tmem.load_words", "words of tcgen05.ld", _sums("tcgen05.ld.words"),
        sm_100=(("sm__mem_tensor_reads_op_ldt.sum",),),
        exactness="scaled", why="reads of TMEM, whose width is not documented",
    ),
    _counter(
        "tmem.store_words", "words of tcgen05.st", _sums("tcgen05.st.words"),
        sm_100=(("sm__mem_tensor_writes_op_stt.sum",),),
        exactness="scaled", why="writes of TMEM, whose width is not documented",
    ),
    _counter(
        "tmem.allocated", "allocated TMEM", ((512, "tmem.columns"),), sm_100=(("sm__mem_tensor_bytes_allocated.sum",),),
        exactness="not comparable",
        why="bytes of all allocations, 512 a column, beside bytes times the cycles that they last",
    ),
)  # fmt: skip

_T = "l1tex__t"
_LSU = "pipe_lsu_mem_global_op"
_MOVED: Final[dict[str, Exactness]] = {"load": "as compiled", "store": "exact"}
"""ptxas moves a load behind the branch that its only use is in, as it does one of shared memory in ``sm90.py``."""
_MEMORY: tuple[SharedCounter, ...] = (
    _counter(
        "global.loads", "global loads", _sums("global.load.requests"), ((f"{_SASS}_global_ld.sum",),),
        exactness="as compiled", why="LDG and LD instructions of warps",
    ),
    _counter(
        "global.load_sectors", "sectors of global loads", _sums("global.load.sectors"),
        (("smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum",),),
        exactness="as compiled", why="sectors of 32 bytes that a request touches",
    ),
    _counter(
        "global.stores", "global stores", _sums("global.store.requests"), ((f"{_T}_requests_{_LSU}_st.sum",),),
        why="requests of warps with an active lane",
    ),
    _counter(
        "global.store_sectors", "sectors of global stores", _sums("global.store.sectors"),
        ((f"{_T}_sectors_{_LSU}_st.sum",),), why="sectors of 32 bytes that a request touches",
    ),
    _counter(
        "global.atomics", "global atomics", _sums("global.atomic.requests"),
        ((f"{_T}_requests_{_LSU}_atom.sum", f"{_T}_requests_{_LSU}_red.sum"),),
        why="requests of warps with an active lane",
    ),
    _counter(
        "cp_async", "cp.async", _sums("cp_async.requests"), ((f"{_SASS}_ldgsts.sum",),),
        why="LDGSTS instructions of warps",
    ),
    _counter(
        "cp_async_sectors", "sectors of cp.async", _sums("cp_async.sectors"),
        (("smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",),),
        why="sectors of 32 bytes that a request touches",
    ),
    *(
        _counter(
            f"shared.{way}s", f"shared-memory {way}s", _sums(f"shared.{way}.requests", f"cluster.{way}.requests"),
            (tuple(f"{_SASS}_{kind}.sum" for kind in kinds),), exactness=_MOVED[way],
            why="instructions of warps, those for matrices and for shared memory of the cluster included",
        )
        for way, kinds in (
            ("load", ("shared_ld", "ldsm", "dshared_ld")),
            ("store", ("shared_st", "shared_stsm", "dshared_st", "dshared_stas")),
        )
    ),
    *(
        _counter(
            f"shared.{way}_wavefronts", f"wavefronts of shared {way}s", _sums(f"shared.{way}.wavefronts"),
            (tuple(f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ops),),
            exactness=_MOVED[way], why="passes through the banks, conflicts included",
        )
        for way, ops in (("load", ("ld", "ldsm")), ("store", ("st", "stsm")))
    ),
    *(
        _counter(
            f"shared.{way}_conflicts", f"bank conflicts of shared {way}s", _sums(f"shared.{way}.conflicts"),
            ((f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum",),),
            exactness="not comparable",
            why="passes beyond the fewest, beside cycles lost to any other access of the data banks, TMA's included",
        )
        for way, op in (("load", "ld"), ("store", "st"))
    ),
    _counter(
        "local.accesses", "local-memory accesses", _sums("local.load.requests", "local.store.requests"),
        ((f"{_SASS}_local.sum",),), exactness="not comparable",
        why="arrays that PTX keeps in local memory, beside the spills that ptxas adds",
    ),
)  # fmt: skip

_BAR = "sass__inst_executed_per_opcode[BAR]"
_SYNC: tuple[SharedCounter, ...] = (
    _counter(
        "barriers", "arrivals at CTA barriers", _sums("barrier.cta.arrivals"), ((_BAR,),),
        why="BAR instructions of warps",
    ),
    _counter(
        "mbarriers", "arrivals and waits at mbarriers", _sums("mbarrier.arrivals", "mbarrier.waits"),
        (("sass__inst_executed_per_opcode[SYNCS]",),), exactness="not comparable",
        why="SYNCS polls as long as a wait lasts, and one arrive.expect_tx is one of them",
    ),
)  # fmt: skip

SHARED_COUNTERS: Final = (*_LAUNCH, *_TMA, *_TENSOR_CORE, *_TMEM, *_MEMORY, *_SYNC)
"""All of them, in the order of tables."""


def chip_of(capability: tuple[int, int]) -> Chip | None:
    """Return the chip whose metric names a compute capability has; None if they are not known."""
    return {9: "sm_90", 10: "sm_100"}.get(capability[0])  # type: ignore[return-value]


def metrics_of(chip: Chip) -> tuple[str, ...]:
    """Return the metrics that a profile of a chip needs for a comparison, as ``ncu --metrics`` takes them.

    Attributes of a launch are in every report, and counts of opcodes only in those with ``--print-metric-instances``.
    """
    names = (
        name
        for counter in SHARED_COUNTERS
        for alternative in counter.measured.get(chip, ())
        for name in alternative
        if not name.startswith(("launch__", "sass__"))
    )
    return tuple(dict.fromkeys(names))

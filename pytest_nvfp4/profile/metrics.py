"""The metrics that profiles share, and where each is found in the reports of Nsight Compute.

A metric has one name and one unit here. In a report it is found by its name in the tool (``counters``, first one that
the chip has), or, where a report has display names only (``ncu --page details``), by section and label.

Names: Nsight Compute's Kernel Profiling Guide, compared with the lists of libnvperf_host for GH100 and GB100
(``profile.chip_metrics``); labels: the section files of Nsight Compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LIGHT: Final = "GPU Speed Of Light Throughput"
_LAUNCH: Final = "Launch Statistics"
_OCCUPANCY: Final = "Occupancy"
_MEMORY: Final = "Memory Workload Analysis"


@dataclass(frozen=True, slots=True)
class KnownMetric:
    """A metric of profiles.

    Attributes:
        name: Its name in results.
        title: Its name in tables.
        unit: Unit of its value: ``us``, ``%``, ``byte``, ``MHz``, or empty.
        counters: Names of it in Nsight Compute.
        labels: Section and label of it on the details page.
    """

    name: str
    title: str
    unit: str
    counters: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()


METRICS: Final[tuple[KnownMetric, ...]] = (
    KnownMetric("duration", "duration", "us", ("gpu__time_duration.sum",), ((_LIGHT, "Duration"),)),
    KnownMetric(
        "sm_throughput", "SM throughput", "%",
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
        ((_LIGHT, "Compute (SM) Throughput"), (_LIGHT, "Compute (SM) [%]"), (_LIGHT, "SM [%]")),
    ),
    KnownMetric(
        "memory_throughput", "memory throughput", "%",
        ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",),
        ((_LIGHT, "Memory Throughput"), (_LIGHT, "Memory [%]")),
    ),
    KnownMetric(
        "dram_throughput", "DRAM throughput", "%",
        (
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        ),
        ((_LIGHT, "DRAM Throughput"),),
    ),
    KnownMetric(
        "l1_throughput", "L1 throughput", "%",
        ("l1tex__throughput.avg.pct_of_peak_sustained_active",), ((_LIGHT, "L1/TEX Cache Throughput"),),
    ),
    KnownMetric(
        "l2_throughput", "L2 throughput", "%",
        ("lts__throughput.avg.pct_of_peak_sustained_elapsed",), ((_LIGHT, "L2 Cache Throughput"),),
    ),
    KnownMetric(
        "tensor_pipe", "tensor pipe active", "%",
        (
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        ),
    ),
    KnownMetric(
        "issue_active", "issue slots busy", "%",
        ("sm__inst_issued.avg.pct_of_peak_sustained_active", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
        (("Compute Workload Analysis", "Issue Slots Busy"), ("Scheduler Statistics", "One or More Eligible")),
    ),
    KnownMetric(
        "l1_hit_rate", "L1 hit rate", "%", ("l1tex__t_sector_hit_rate.pct",), ((_MEMORY, "L1/TEX Hit Rate"),)
    ),
    KnownMetric("l2_hit_rate", "L2 hit rate", "%", ("lts__t_sector_hit_rate.pct",), ((_MEMORY, "L2 Hit Rate"),)),
    KnownMetric("dram_read", "DRAM read", "byte", ("dram__bytes_read.sum",)),
    KnownMetric("dram_written", "DRAM written", "byte", ("dram__bytes_write.sum",)),
    KnownMetric(
        "bank_conflicts", "shared-memory bank conflicts", "",
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    ),
    KnownMetric(
        "achieved_occupancy", "achieved occupancy", "%",
        ("sm__warps_active.avg.pct_of_peak_sustained_active",), ((_OCCUPANCY, "Achieved Occupancy"),),
    ),
    KnownMetric(
        "theoretical_occupancy", "theoretical occupancy", "%",
        ("sm__maximum_warps_per_active_cycle_pct",), ((_OCCUPANCY, "Theoretical Occupancy"),),
    ),
    KnownMetric(
        "registers", "registers a thread", "", ("launch__registers_per_thread",), ((_LAUNCH, "Registers Per Thread"),)
    ),
    KnownMetric(
        "shared_memory", "shared memory a CTA", "byte",
        ("launch__shared_mem_per_block_allocated", "launch__shared_mem_per_block"),
    ),
    KnownMetric(
        "dynamic_shared_memory", "dynamic shared memory a CTA", "byte",
        ("launch__shared_mem_per_block_dynamic",), ((_LAUNCH, "Dynamic Shared Memory Per Block"),),
    ),
    KnownMetric(
        "static_shared_memory", "static shared memory a CTA", "byte",
        ("launch__shared_mem_per_block_static",), ((_LAUNCH, "Static Shared Memory Per Block"),),
    ),
    KnownMetric(
        "tmem_allocated", "TMEM allocated", "byte",
        ("sm__mem_tensor_bytes_allocated.max", "sm__mem_tensor_bytes_allocated.avg"),
    ),
    KnownMetric("grid_size", "CTAs", "", ("launch__grid_size",), ((_LAUNCH, "Grid Size"),)),
    KnownMetric("block_size", "threads a CTA", "", ("launch__block_size",), ((_LAUNCH, "Block Size"),)),
    KnownMetric("cluster_size", "CTAs a cluster", "", ("launch__cluster_size",), ((_LAUNCH, "Cluster Size"),)),
    KnownMetric(
        "waves", "waves", "", ("launch__waves_per_multiprocessor",), ((_LAUNCH, "Waves Per SM"),)
    ),
    KnownMetric(
        "sm_clock", "SM clock", "MHz",
        ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"), ((_LIGHT, "SM Frequency"),),
    ),
    KnownMetric("dram_clock", "DRAM clock", "MHz", ("dram__cycles_elapsed.avg.per_second",),
                ((_LIGHT, "DRAM Frequency"),)),
    KnownMetric("elapsed_cycles", "elapsed cycles", "", ("gpc__cycles_elapsed.max",), ((_LIGHT, "Elapsed Cycles"),)),
)  # fmt: skip
BY_NAME: Final = {metric.name: metric for metric in METRICS}
BY_LABEL: Final = {label: metric.name for metric in METRICS for label in metric.labels}

STALL_COUNTERS: Final = (
    r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio",
    r"smsp__average_warp_latency_issue_stalled_(\w+?)\.ratio",
)
"""Patterns of warps stalled per issued instruction, the reason in group 1; ``(\\w+?)_not_issued`` is another metric."""

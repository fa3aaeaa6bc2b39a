"""Rules that tell what limits a launch: classes of bottlenecks for GEMMs whose warps have roles, with their thresholds.

Occupancy is no class: a GEMM with one or two CTAs of four to twelve warps on an SM runs at 6 to 19 % by design, and its
copies and matrix instructions need no other warps to overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Class = Literal["memory", "tensor", "issue", "latency", "barrier", "tail", "launch"]

BUSY: Final = 60.0
"""Percent of its peak from which a unit counts as the limit, and below which all of them point to latency."""
_SOL: Final = "Nsight Compute, rule SOLBottleneck: below 60 % of peak of both, latency is typical"
_ATREX: Final = "Atrex (Alibaba), classification of Nsight Compute's metrics"
_GUIDE: Final = "Nsight Compute, Kernel Profiling Guide, warp stall reasons"
_GAP: Final = "2.05 us between the kernels of a stream, published for a B300"


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a quantity with a threshold.

    Attributes:
        quantity: A metric of ``profile.metrics``; ``stall.REASON`` (warps that are stalled so for each issued
            instruction); ``tail_idle`` (percent of CTA slots without work in the last wave, over all waves) or
            ``idle_sms`` (percent of SMs without a CTA).
        above: Whether it must be at least the threshold; else below it.
        threshold: The threshold, or the name of a quantity.
        source: Where the threshold comes from.
    """

    quantity: str
    above: bool
    threshold: float | str
    source: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What speaks against a class: its conditions, all of them, and what they mean."""

    conditions: tuple[Condition, ...]
    means: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change that addresses a class.

    Attributes:
        text: The change.
        question: The what-if of the time model that bounds its gain; empty for none.
    """

    text: str
    question: str = ""


@dataclass(frozen=True, slots=True)
class BottleneckRule:
    """One class.

    Attributes:
        name: The class.
        title: What limits the launch.
        alternatives: The launch belongs to the class if all conditions of one alternative hold.
        contradictions: What speaks against it.
        stalls: Stall reasons of warps by which a source line belongs to it.
        causes: Causes on the modelled critical path by which a source line belongs to it.
        changes: What addresses it.
    """

    name: Class
    title: str
    alternatives: tuple[tuple[Condition, ...], ...]
    contradictions: tuple[Contradiction, ...]
    stalls: tuple[str, ...]
    causes: tuple[str, ...]
    changes: tuple[Change, ...]


def _at_least(quantity: str, threshold: float | str, source: str) -> Condition:
    return Condition(quantity, True, threshold, source)


def _below(quantity: str, threshold: float | str, source: str) -> Condition:
    return Condition(quantity, False, threshold, source)


_HIDDEN = Contradiction(
    (_at_least("tensor_pipe", BUSY, _SOL),),
    "the tensor pipe is busy, so that these waits are hidden behind it; warps of other roles wait by design",
)

RULES: Final[tuple[BottleneckRule, ...]] = (
    BottleneckRule(
        "memory", "L2 or DRAM",
        ((_at_least("memory_throughput", BUSY, _SOL),), (_at_least("dram_throughput", BUSY, _SOL),)),
        (
            Contradiction((_at_least("tensor_pipe", "memory_throughput", "comparison"),), "the tensor pipe is busier"),
            Contradiction((_below("dram_throughput", BUSY, _SOL),), "it is not DRAM: the traffic ends in a cache"),
        ),
        ("long_scoreboard", "lg_throttle", "drain"), ("L2", "DRAM", "L2 writes", "TMA rows", "TMA store"),
        (
            Change("load a tile once for several CTAs: multicast, or an order of tiles that meets in L2", "l2"),
            Change("read fewer bytes: larger tiles, no copies of rows that are padding", "dram"),
        ),
    ),
    BottleneckRule(
        "tensor", "the tensor core",
        ((_at_least("tensor_pipe", BUSY, _SOL),),),
        (Contradiction((_below("tensor_pipe", "memory_throughput", "comparison"),), "memory is busier"),),
        ("math_pipe_throttle", "gmma"), ("MMA", "tensor memory"),
        (Change("compute less padding: smaller tiles of M, or the operand with fewer rows as N"),),
    ),
    BottleneckRule(
        "issue", "issue slots",
        ((_at_least("issue_active", BUSY, _SOL), _below("tensor_pipe", BUSY, _SOL)),),
        (
            Contradiction(
                (_below("stall.not_selected", 0.5, _GUIDE),),
                "hardly a warp waits for an issue slot: warps that poll a barrier fill the slots that nobody needs",
            ),
        ),
        ("not_selected", "dispatch_stall", "math_pipe_throttle", "no_instruction", "branch_resolving"),
        ("instructions", "issue slots", "issue", "load unit"),
        (Change("execute fewer instructions in the loop: wider accesses, addresses computed before it, unrolling"),),
    ),
    BottleneckRule(
        "latency", "latency: no unit is busy",
        (tuple(_below(unit, BUSY, _SOL) for unit in ("memory_throughput", "sm_throughput", "tensor_pipe")),),
        (
            Contradiction((_at_least("idle_sms", 15.0, _ATREX),), "SMs without a CTA lower every average: see launch"),
            Contradiction((_at_least("tail_idle", 15.0, _ATREX),), "the last wave lowers every average: see tail"),
        ),
        ("long_scoreboard", "short_scoreboard", "wait", "gmma"),
        (
            "TMA latency", "latency", "load latency", "MMA latency", "tensor memory latency", "map_change",
            "map_acquire", "map_acquire_changed",
        ),
        (
            Change("one more stage in the ring of copies", "stage"),
            Change("no tensor maps changed in the kernel: pass them as parameters", "maps"),
            Change("a second CTA on each SM, whose copies overlap the first one's epilogue", "occupancy"),
        ),
    ),
    BottleneckRule(
        "barrier", "barriers of CTAs",
        ((_at_least("stall.barrier", 2.0, _ATREX),), (_at_least("stall.membar", 2.0, _ATREX),)),
        (_HIDDEN,),
        ("barrier", "membar"), ("barrier",),
        (Change("wait with fewer warps: named barriers of a role, or mbarriers, in place of one of the whole CTA"),),
    ),
    BottleneckRule(
        "tail", "the last wave",
        ((_at_least("tail_idle", 15.0, _ATREX),),),
        (),
        (), (),
        (Change("a persistent grid, or tiles whose number divides by the slots; groups sorted by falling size"),),
    ),
    BottleneckRule(
        "launch", "the launch",
        ((_below("duration", 4.1, _GAP),), (_at_least("idle_sms", 15.0, _ATREX),)),
        (
            Contradiction(
                (_at_least("duration", 20.0, _GAP), _below("idle_sms", 15.0, _ATREX)),
                "the kernel is ten times as long as the gap before it",
            ),
        ),
        (), ("launch before", "CTA start"),
        (
            Change("programmatic dependent launch: the next kernel's prologue overlaps this one's end", "dependent"),
            Change("a CUDA graph, or fewer launches", "launch"),
            Change("more CTAs: smaller tiles, or split K"),
        ),
    ),
)  # fmt: skip
BY_CLASS: Final = {rule.name: rule for rule in RULES}

"""Kernels as functions from a problem to the rings, grids and writers of a call: what fits a problem sees no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.device.result import OutputWrites, SimulatedCall, SimulatedLaunch, SimulatedRing
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import Problem

SMS = 148


@dataclass
class ModelledKernel:
    """A GEMM with a ring of k-tiles and a ring of accumulators.

    Attributes:
        grid: ``tiles`` for one CTA a tile, ``device`` for one a SM, ``fixed`` for 148, ``queue`` for cluster launch
            control.
        refuses: Problems for which the host code raises.
        fails: Problems on which the kernel faults.
        races: Problems on which a race is found on a small device.
        most_tiles: Tiles that a CTA computes without a deadlock.
        instances: The stages of the instance for each k, as of a template; None if one kernel takes every k.
        other_k: k of the instance that is launched for any other k; None if the host code raises.
        by_groups: Whether there is an instance for each number of groups, which takes every k.
        by_rows: The number of rows from which another kernel is launched; 0 for none.
        rows: The numbers of rows that it takes; all if empty.
        pairs: Whether a cluster of two CTAs computes a tile, each half of its rows (with ``grid="tiles"``).
        seen: The problems and the SM count of each call.
    """

    stages: int = 3
    k_tile: int = 256
    tile: tuple[int, int] = (128, 128)
    accumulators: int = 1
    grid: Literal["tiles", "device", "fixed", "queue"] = "tiles"
    unused_ring: bool = False
    refuses: Sequence[str] = ()
    fails: Sequence[str] = ()
    races: Sequence[str] = ()
    least_k: int = 256
    takes_empty: bool = True
    least_sms: int = 1
    most_tiles: int = 9999
    pairs: bool = False
    instances: Mapping[int, int] | None = None
    other_k: int | None = None
    by_groups: bool = False
    by_rows: int = 0
    rows: Sequence[int] = ()
    seen: list[tuple[str, int | None]] = field(default_factory=list)

    def observe(
        self, problems: Sequence[Problem], launch_only: tuple[int, ...], sms: int | None
    ) -> list[SimulationResult]:
        """What a job of the simulator returns."""
        return [self._run(problem, at in launch_only, sms) for at, problem in enumerate(problems)]

    def _run(self, problem: Problem, only: bool, sms: int | None) -> SimulationResult:
        self.seen.append((problem.name, sms))
        case = JobCase(problem=ProblemSpec.of(problem), family="gpumode")
        bad = any(group.k % self.least_k for group in problem.groups)
        bad |= not self.takes_empty and any(group.m == 0 for group in problem.groups)
        depth = max(group.k for group in problem.groups)
        instance = depth if self.instances is None or depth in self.instances else self.other_k
        bad |= instance is None or (bool(self.rows) and any(group.m not in self.rows for group in problem.groups))
        if bad or instance is None or problem.name in self.refuses:
            return SimulationResult(case, "error", (Finding("run", "ValueError: these sizes\n  are refused"),), None)
        if problem.name in self.fails or (sms or SMS) < self.least_sms:
            return SimulationResult(case, "failed", (Finding("deadlock", "all wait"),), None)
        stages = self.stages if self.instances is None else self.instances[instance]
        tiles = [
            -(-(group.k if self.instances is None else instance) // self.k_tile)
            for group in problem.groups
            for _ in range(-(-group.m // self.tile[0]) * -(-group.n // self.tile[1]))
        ]
        device = sms or SMS
        ctas = {"tiles": len(tiles), "queue": len(tiles), "device": min(device, len(tiles)), "fixed": SMS}[self.grid]
        running = min(ctas, device) if self.grid == "queue" else ctas
        own = [tiles[cta::running] for cta in range(running)]
        most = max(own, key=sum)
        if not only and len(most) > self.most_tiles:
            return SimulationResult(case, "failed", (Finding("deadlock", "all wait"),), None)
        rings = [_ring("k.py:1", stages, sum(most)), _ring("k.py:2", self.accumulators, max(map(len, own)))]
        rings += [_ring("k.py:3", 2, 0)] * self.unused_ring
        writers = sum(bool(cta) for cta in own)
        if self.pairs:
            half = self.tile[0] // 2
            writers = sum(-(-group.m // half) * -(-group.n // self.tile[1]) for group in problem.groups)
        launch = SimulatedLaunch(
            kernel=self._name(problem, instance),
            grid=(ctas * (1 + self.pairs), 1, 1),
            block=(128, 1, 1),
            cluster=(1 + self.pairs, 1, 1),
            shared_bytes=0,
            ctas_per_sm=1,
            counters={} if only or self.grid != "queue" else {"clc.requests": 1, "clusters.cancelled": ctas - running},
            writers=None if only else writers,
            rings=() if only else tuple(rings),
        )
        writes = OutputWrites(group=0, elements=1, never=0, by_two=0, twice=0, ctas=1, tiles=len(tiles))
        call = SimulatedCall(call=0, case=0, model="", sms=device, launches=(launch,), outputs=(writes,))
        if sms is not None and problem.name in self.races:
            return SimulationResult(case, "failed", (Finding("race", "two accesses race"),), call)
        return SimulationResult(case, "passed", (), call)

    def _name(self, problem: Problem, instance: int) -> str:
        if self.by_groups:
            return f"gemm_of_{len(problem.groups)}"
        if self.by_rows and max(group.m for group in problem.groups) >= self.by_rows:
            return "gemm_of_many_rows"
        return "gemm" if self.instances is None else f"gemm_{instance}"


def _ring(made: str, stages: int, iterations: int) -> SimulatedRing:
    phases = tuple((iterations - stage + stages - 1) // stages for stage in range(stages))
    barriers = tuple(range(0, 8 * stages, 8))
    return SimulatedRing(made=made, waiters=(), cta=0, barriers=barriers, count=1, bytes=0, phases=phases)

"""A small problem fitted to one kernel: it refills every ring of mbarriers at least twice, and has the edge cases.

The official problems have three k-tiles at most, so a pipeline of three stages never fills a stage again there, and an
error in its release is not executed. The fit follows from what small simulated runs of the kernel show, and not
from its names:

1. Two small tiles with different k give the k-tiles a CTA executes for each ring (`sim.sync.rings`) and the columns
   and rows of a tile. A launch with very many tiles, which is only recorded, shows whether the grid grows with them.
2. If the grid does not grow (a persistent kernel), the simulated device gets two clusters' worth of SMs, so that few
   tiles give a CTA a second one. The grid of the same launch shows whether it depends on the device's SMs.
3. The problem has a group with enough k, a group without rows (m is free in GPU MODE's contract), and a ragged one with
   a tile for each further turn of a CTA, and two at least, because the CTAs of one group may share what a kernel keeps
   for each group. A contract on one problem has the tiles of these groups side by side (``Contract.fitted``), all with
   the large k. It is run, and the phases of every mbarrier are counted. If a ring was not refilled, k or the number
   of tiles grows, up to a limit.
4. One small tile with each official k, which is only recorded, shows whether the host code chooses another kernel
   there than for the fitted problem, and than for one small tile with the k of that. If it does, or refuses the
   fitted problem, that tile is run with each official k, and the fitted problem has the k that refills most rings. If
   the kernel refuses this too, the official problems that take seconds are tried.

5. Kernels that are launched for an official k, and not for the problem, are named. Host code with kernels that are
   compiled before it is called may choose by other sizes too: there, the launches of all official problems are recorded
   (seconds, for the inputs), and each kernel that is not launched for the problem has a small one: the tile with an
   official k for which it is launched, else an official problem that takes seconds.

The reasons include rings that depend on neither, and sizes that the kernel refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_nvfp4.device import official_path
from pytest_nvfp4.device.fit_reasons import reached
from pytest_nvfp4.device.ring_counts import (
    REFILLS,
    clusters_of_tiles,
    rings_of,
    takes_over,
    tiles_of_a_cta,
)
from pytest_nvfp4.problem import Group, Problem
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.base import Contract
    from pytest_nvfp4.device.result import SimulatedCall
    from pytest_nvfp4.device.simulate import SimulationResult

RING_CTAS = 256
"""Largest launch whose rings are recorded."""
_STEP_N, _STEP_K = 128, 256
"""GPU MODE's contract makes n and k multiples of these."""
_MANY_TILES = 512
"""Tiles of 128 columns of the launch that is only recorded: more than the CTAs that any product holds at once."""
_MOST_K = 16384
_MOST_TILES = 64
_TILES = 2
"""Least number of tiles of the ragged group."""
_CLUSTERS = 2
"""Clusters that the smaller device holds at once: two, so that they compete for tiles."""
_DEFAULT_K = 2304
"""Nine k-tiles of 256: k of a kernel whose rings could not be measured."""
_ROUNDS = 4
_MOST_OTHERS = 8
"""Kernels for official problems that are searched for races beside those of the fitted problem: seconds for each."""
_REFUSALS = frozenset({"run", "contract"})
"""Kinds of findings about the kernel's own host code, which may refuse sizes."""

Observe = Callable[[Sequence[Problem], tuple[int, ...], int | None], "Sequence[SimulationResult]"]
"""Simulates problems with rings; those at the given indices are only recorded. The last argument is the SM count."""


@dataclass(frozen=True, slots=True)
class FittedProblem:
    """A problem for one kernel and configuration.

    Attributes:
        problem: The problem.
        sms: SMs of the simulated device; None for those of the product.
        why: What the problem is for, and what it does not reach, one reason an entry.
        shown: Simulation of the problem, whose outputs are not judged.
        others: Small problems with official kernels that the problem does not launch.
    """

    problem: Problem
    sms: int | None
    why: tuple[str, ...]
    shown: SimulationResult
    others: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        device = "" if self.sms is None else f" on {plural(self.sms, 'SM')}"
        return f"{', '.join(map(str, self.problem.groups))}{device}: {'; '.join(self.why)}"


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes that are increased until every ring is refilled.

    Attributes:
        tile_m, tile_n: Rows and columns that one cluster computes, 128 or more.
        k: k of the full tile.
        tiles: Ragged tiles along n, the last of which is ragged in n too if a tile has more columns than 128.
        empty: Whether there is a group without rows.
    """

    tile_m: int = 128
    tile_n: int = 128
    k: int = _DEFAULT_K
    tiles: int = _TILES
    empty: bool = True

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of these sizes."""
        columns = self.tiles * self.tile_n - (_STEP_N if self.tile_n > _STEP_N else 0)
        ragged = Group(self.tile_m - 56, columns, _STEP_K)
        empty = [Group(0, _STEP_N, _STEP_K)] * self.empty
        return (Group(self.tile_m, self.tile_n, self.k), *empty, ragged)


def fit(observe: Observe, *, contract: Contract, fallback: Problem, ahead: bool = False) -> FittedProblem:
    """Return the problem for a kernel.

    Args:
        observe: Simulates the kernel.
        contract: Its contract, under which problems are fitted.
        fallback: Problem of a kernel that refuses the others.
        ahead: Whether its code is compiled before it is called.
    """
    return _Fit(observe, contract, fallback, ahead=ahead).fit()


@dataclass(frozen=True, slots=True)
class _Grid:
    """Grid of a launch with very many tiles, on the product's device.

    Attributes:
        at: Index of the launch in its call.
        ctas, clusters: Its size.
        depends_on_device: Whether it is known to be smaller on a device of fewer SMs.
    """

    at: int
    ctas: int
    clusters: int
    depends_on_device: bool = False


class _Fit:
    def __init__(self, observe: Observe, contract: Contract, fallback: Problem, *, ahead: bool) -> None:
        self._observe = observe
        self._ahead = ahead
        self._contract = contract
        self._many = self._problem(Group(1, _MANY_TILES * _STEP_N, _STEP_K))
        self._fallback = fallback
        self._why: list[str] = []
        self._sms: int | None = None
        self._per_k: dict[object, float] = {}
        """Phases that a ring completes in one tile for each element of k, for rings that go round with k."""
        self._grid: _Grid | None = None
        """The grid of a kernel that seems persistent."""
        self._on_product = False
        """Whether such a kernel runs on the product's device."""
        self._small: tuple[int, dict[object, float]] | None = None
        """The larger k of the small tiles, and the phases of each ring there."""
        self._sizes = _Sizes()
        """The last sizes."""
        self._official: dict[int, official_path.Paths] = {}
        """The kernels of one tile with each official k that the host code accepts."""
        self._alike: official_path.Paths = frozenset()
        """Kernels of one tile where those of the problem are others, by the number of groups or their sizes."""

    def fit(self) -> FittedProblem:
        found = self._chosen()
        if not (own := official_path.paths(found.shown)):
            return found
        if not self._ahead:  # else the official problems show which of them there are
            own |= self._alike
        launched = {f"k = {k}": taken for k, taken in self._official.items()}
        small: dict[Problem, official_path.Paths] = {}
        if self._ahead:
            problems = tuple(dict.fromkeys((*self._contract.tests, *self._contract.benchmarks)))
            taken = [official_path.paths(done) for done in self._observe(problems, tuple(range(len(problems))), None)]
            launched = {problem.name: paths for problem, paths in zip(problems, taken, strict=True)}
            small = {self._tile(k): paths for k, paths in self._official.items()}
            verified = [each for each in problems if self._contract.multiply_adds(each) <= self._contract.most]
            small |= {each: launched[each.name] for each in sorted(verified, key=self._contract.multiply_adds)}
        missing = official_path.unlaunched(own, launched)
        on = {path: next((problem for problem, paths in small.items() if path in paths), None) for path in missing}
        searched = {path: problem for path, problem in on.items() if problem is not None}
        searched = dict(list(searched.items())[:_MOST_OTHERS])
        why = official_path.described(missing, own, searched)
        return replace(found, why=(*found.why, *why), others=tuple(dict.fromkeys(searched.values())))

    def _chosen(self) -> FittedProblem:
        found = self._fit()
        if found is None:
            return self._with_official_k(replace(self._sizes, empty=False)) or self._official_problem()
        if found.shown.errors or self._as_official(official_path.paths(found.shown)):
            return found
        # The host code may choose by the number of groups, or by their sizes, which the other sizes have in common.
        (tile,) = self._observe([self._tile(self._sizes.k)], (0,), None)
        if self._as_official(official_path.paths(tile)):
            self._alike = official_path.paths(tile)
            return found
        why = list(self._why)
        self._why.append("the host code chooses the kernel by k, which is an official one")
        if (other := self._with_official_k(self._sizes)) is not None:
            return other
        kernels = "official values of k have other kernels, of which none runs on a small problem"
        self._why = why
        return replace(found, why=(*found.why, kernels))

    def _as_official(self, own: official_path.Paths) -> bool:
        """Return whether these kernels are those of one tile with each official k, as far as they are known."""
        return all(taken <= own for taken in self._official.values())

    def _fit(self) -> FittedProblem | None:
        """Return a problem of any k; None if the kernel refuses it."""
        sizes = self._measure()
        before: SimulatedCall | None = None
        left = _ROUNDS
        while True:
            left -= 1
            self._sizes = sizes
            problem = self._problem(*sizes.groups)
            # The small device's first job also records the launch with very many tiles: a job costs seconds to start.
            many = [] if self._grid is None or self._grid.depends_on_device else [self._many]
            done, *small = self._observe([problem, *many], (1,) * len(many), self._sms)
            if (grid := self._grid) is not None and (why := self._on_whole_device(grid, done, small)) is not None:
                self._grid = self._sms = None
                self._on_product = True
                self._why.append(why)
                sizes = replace(sizes, tiles=grid.clusters + _CLUSTERS)
                continue
            if (refusal := _refusal(done)) is not None:
                self._why.append(f"the kernel refuses {problem.name} ({refusal})")
                accepted = next(self._accepted_instead(sizes), None)
                if accepted is None or left < 1:
                    return None
                sizes = accepted
                continue
            if done.call is None or done.errors:
                self._why.append("the refills of its rings could not be counted, because the kernel fails on it")
                return FittedProblem(problem, self._sms, (*self._edges(sizes), *self._why), done)
            larger = self._larger(sizes, done.call, before)
            if larger == sizes or left < 1:
                reasons = (
                    *reached(done.call, sms=self._sms, per_k=self._per_k, persistent=self._on_product),
                    *self._edges(sizes),
                    *self._why,
                )
                return FittedProblem(problem, self._sms, reasons, done)
            sizes, before = larger, done.call

    def _problem(self, *groups: Group) -> Problem:
        found = self._contract.fitted(groups)
        assert found is not None, "settings of such a contract have no fitted problem"
        return found

    def _tile(self, k: int) -> Problem:
        """Return the problem of one small tile."""
        return self._problem(Group(_STEP_N, _STEP_N, k))

    def _several_groups(self, sizes: _Sizes) -> bool:
        """Return whether the problem has the groups themselves."""
        return self._problem(*sizes.groups).groups == sizes.groups

    def _accepted_instead(self, sizes: _Sizes) -> Iterator[_Sizes]:
        """Yield sizes that a kernel may accept in place of others: k in coarser steps, then no empty group."""
        coarse = -(-sizes.k // (4 * _STEP_K)) * 4 * _STEP_K
        if sizes.k != coarse:
            yield replace(sizes, k=coarse)
        if sizes.empty and self._several_groups(sizes):
            yield replace(sizes, empty=False)

    def _edges(self, sizes: _Sizes) -> Iterator[str]:
        """Yield what the other groups are for."""
        ragged = self._problem(*sizes.groups).groups[-1]
        if not self._several_groups(sizes):
            if ragged.n % sizes.tile_n and ragged.n > 1:
                yield f"{ragged.m}x{ragged.n} is ragged for tiles of {sizes.tile_m}x{sizes.tile_n}"
            return
        if sizes.empty:
            yield "one group has no rows"
        yield (
            f"{ragged.m}x{ragged.n} is ragged for tiles of {sizes.tile_m}x{sizes.tile_n}"
            if (ragged.n % sizes.tile_n)
            else f"{ragged.m} rows are ragged for tiles of {sizes.tile_m}"
        )

    def _with_official_k(self, sizes: _Sizes) -> FittedProblem | None:
        """Return the problem of these sizes with the official k that refills most rings on one tile.

        If the kernel fails there for an official k, it is the problem with the smallest such k; if the host code
        refuses all of them, or the problem, it is None.
        """
        ks = list(self._official)
        results = dict(zip(ks, self._observe([self._tile(k) for k in ks], (), None), strict=True)) if ks else {}
        failing = [k for k, done in results.items() if done.errors and _refusal(done) is None]
        calls = {k: done.call for k, done in results.items() if done.call is not None and done.call.launches}
        if not failing and not calls:
            return None
        k = failing[0] if failing else official_path.best(calls)
        problem = self._problem(*(replace(group, k=k) for group in sizes.groups))
        (done,) = self._observe([problem], (), self._sms)
        if _refusal(done) is not None:
            return None
        if failing or done.call is None or done.errors:
            why = f"the refills of its rings could not be counted, because the kernel fails for k = {k}"
            return FittedProblem(problem, self._sms, (why, *self._why), done)
        reasons = self._reached_of_k(done.call, calls, k)
        return FittedProblem(problem, self._sms, (*reasons, *self._edges(sizes), *self._why), done)

    def _reached_of_k(self, call: SimulatedCall, calls: Mapping[int, SimulatedCall], k: int) -> Iterator[str]:
        """Yield what a call with an official k reaches of the rings, and what only another k of ``calls`` has."""
        yield from reached(
            call, sms=self._sms, per_k=self._per_k, of_k=set(official_path.of_k(calls, k)), persistent=self._on_product
        )
        yield from official_path.elsewhere(calls, k)

    def _official_problem(self) -> FittedProblem:
        """Return the first official problem that refills every ring that goes round; of others that refill most."""
        results: dict[Problem, SimulationResult] = {}
        for problem in dict.fromkeys((self._fallback, *official_path.affordable(self._contract))):
            (done,) = self._observe([problem], (), None)
            results[problem] = done
            if done.call is not None and official_path.wraps(done.call):
                break
            if done.errors and _refusal(done) is None:
                return FittedProblem(problem, None, tuple(self._why), done)
        calls: dict[int, SimulatedCall] = {}
        problems: dict[int, Problem] = {}
        for problem, done in results.items():
            if done.call is not None and (k := official_path.depth(problem)) not in calls:
                calls[k], problems[k] = done.call, problem
        if not calls:
            return FittedProblem(self._fallback, None, tuple(self._why), results[self._fallback])
        k = official_path.best(calls)
        reasons = self._reached_of_k(calls[k], calls, k)
        return FittedProblem(problems[k], None, (*reasons, *self._why), results[problems[k]])

    # ---- measurements ----------------------------------------------------------------------------------------------

    def _measure(self) -> _Sizes:
        """Run two small tiles, record a launch with very many, and return sizes that should refill every ring."""
        rows, columns = Group(256, 128, 2 * _STEP_K), Group(256, 256, 4 * _STEP_K)
        ks = list(official_path.official(self._contract))
        tiles = [self._tile(k) for k in ks]
        small = [self._problem(rows), self._problem(columns)]
        only = tuple(range(len(small), len(small) + 1 + len(tiles)))
        tall, wide, wave, *recorded = self._observe([*small, self._many, *tiles], only, None)
        taken = zip(ks, map(official_path.paths, recorded), strict=True)
        self._official = {k: launched for k, launched in taken if launched}
        if tall.call is None or wide.call is None or tall.errors or wide.errors:
            self._why.append("its rings could not be measured on small tiles, because the kernel fails there")
            return _Sizes()
        short, long = rings_of(tall.call), rings_of(wide.call)
        needed = 0.0
        deepest = 0
        for key, ring in long.items():
            before = short[key].iterations / tiles_of_a_cta(tall.call) if key in short else 0.0
            done = ring.iterations / tiles_of_a_cta(wide.call)
            slope = (done - before) / (columns.k - rows.k)
            if slope > 0:
                self._per_k[key] = slope
                needed = max(needed, columns.k + ((REFILLS + 1) * ring.stages - done) / slope)
            else:
                deepest = max(deepest, ring.stages)
        self._small = columns.k, {key: ring.iterations / tiles_of_a_cta(wide.call) for key, ring in long.items()}
        return _Sizes(
            tile_m=256 if clusters_of_tiles(tall.call) == 1 else 128,
            # Twice the columns need no more clusters. Both have 256 rows, so that no CTA of a cluster idles.
            tile_n=256 if clusters_of_tiles(wide.call) == clusters_of_tiles(tall.call) else 128,
            k=min(_rounded(needed) if self._per_k or not long else _DEFAULT_K, _MOST_K),
            tiles=self._tiles(wave, wide.call, deepest=deepest),
        )

    def _tiles(self, wave: SimulationResult, call: SimulatedCall, *, deepest: int) -> int:
        """Return the number of tiles that gives CTAs further ones, and set the SM count.

        Args:
            wave: The launches of very many tiles.
            call: A call with few tiles.
            deepest: Stages of the deepest ring that does not go round with k; 0 if there is none.
        """
        # Without such a ring two tiles for each cluster do, of which the whole tile is one.
        turns = (REFILLS + 1) * deepest * _CLUSTERS or 2 * _CLUSTERS - 1
        taking = next((launch for launch in call.launches if takes_over(launch)), None)
        if taking is not None:
            self._sms = _CLUSTERS * (taking.ctas // taking.clusters)
            return turns
        launches = () if wave.call is None or wave.errors else wave.call.launches
        for at, (launch, few) in enumerate(zip(launches, call.launches, strict=False)):
            if wave.call is None or not few.writers or launch.ctas >= _MANY_TILES or launch.waves(wave.call.sms) > 1:
                continue
            self._sms = _CLUSTERS * (launch.ctas // launch.clusters)
            self._grid = _Grid(at, launch.ctas, launch.clusters)
            return turns
        return _TILES

    def _on_whole_device(self, grid: _Grid, done: SimulationResult, small: Sequence[SimulationResult]) -> str | None:
        """Return why the kernel is to run on the product's device; None if the small one serves.

        A failure on the small device is the kernel's own if its grid follows the device. If it does not, or the host
        code refuses the device, the kernel may need what the small device lacks. What was found of the launch of very
        many tiles, in a later call, does not change its grid.

        Args:
            grid: The grid on the product's device.
            done: A run on the small device.
            small: The launch of very many tiles there; empty if it was seen before.
        """
        if not small:
            return None
        launches = () if small[0].call is None else small[0].call.launches
        if grid.at < len(launches) and launches[grid.at].ctas < grid.ctas:
            self._grid = replace(grid, depends_on_device=True)
            return None
        if not launches or done.call is None or done.errors:
            return f"the kernel fails on a device of {plural(self._sms or 0, 'SM')}"
        return f"its grid of {grid.ctas} CTAs grows neither with the tiles nor with the device"

    # ---- counting --------------------------------------------------------------------------------------------------

    def _larger(self, sizes: _Sizes, call: SimulatedCall, before: SimulatedCall | None) -> _Sizes:
        """Return sizes that may refill the rings that were not; equal ones if none may.

        Args:
            sizes: Sizes of the call.
            call: The last call.
            before: The call before it, which had smaller sizes.
        """
        k, tiles = sizes.k, sizes.tiles
        self._learn(sizes, call)
        earlier = {} if before is None else rings_of(before)
        for key, ring in rings_of(call).items():
            if ring.refills >= REFILLS or not ring.iterations:
                continue
            if key in earlier and earlier[key].iterations >= ring.iterations:
                continue
            missing = (REFILLS + 1) * ring.stages - ring.iterations
            if key in self._per_k:
                k = max(k, _rounded(sizes.k + max(1, missing) / self._per_k[key]))
            elif self._sms is not None:
                tiles = max(tiles, 2 * sizes.tiles)
        return replace(sizes, k=min(k, _MOST_K), tiles=min(tiles, max(_MOST_TILES, sizes.tiles)))

    def _learn(self, sizes: _Sizes, call: SimulatedCall) -> None:
        """Find rings that go round with k only beyond the k of the small tiles: their k-tiles are larger."""
        if self._small is None or self._sms is not None or sizes.tiles > _TILES or sizes.k <= self._small[0]:
            return
        k, phases = self._small
        for key, ring in rings_of(call).items():
            if key not in self._per_k and ring.iterations > phases.get(key, ring.iterations):
                self._per_k[key] = (ring.iterations - phases[key]) / (sizes.k - k)


def _rounded(k: float) -> int:
    """Return the smallest k of the contract that is at least ``k``."""
    return max(1, -int(-k // _STEP_K)) * _STEP_K


def _refusal(done: SimulationResult) -> str | None:
    """Return the message with which the kernel's host code ended the call; None if it did not."""
    errors = done.errors
    if errors and all(finding.kind in _REFUSALS for finding in errors):
        return errors[0].message.splitlines()[0]
    return None

"""The path that a kernel takes for the official problems, where its host code chooses a kernel by k.

An instance of a template for each official k is not launched for another k: the host code refuses it, or launches an
instance that is not the one to be tested. Rings of the instances for an official k are refilled by an official k only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.device.ring_counts import REFILLS, name_of, rings_of
from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.base import Contract
    from pytest_nvfp4.device.result import SimulatedCall, SimulatedRing
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.problem import Problem

Path = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""Symbol, block and cluster of a launch, and its bytes of shared memory."""
Paths = frozenset[Path]
_KERNELS, _NAMED = 16, 4
"""Kernels that are named, and problems of each."""
_TIMES = 4
"""Multiply-adds of the largest official problem that is tried, in those of the largest that is verified by default."""


def depth(problem: Problem) -> int:
    """Return the largest k of a problem."""
    return max(group.k for group in problem.groups)


def official(contract: Contract) -> dict[int, Problem]:
    """Return the official problem with the fewest multiply-adds for each k, in the order of k."""
    found: dict[int, Problem] = {}
    for problem in sorted((*contract.tests, *contract.benchmarks), key=contract.multiply_adds):
        found.setdefault(depth(problem), problem)
    return dict(sorted(found.items()))


def affordable(contract: Contract) -> list[Problem]:
    """Return the problems of ``official`` that take seconds, those with few multiply-adds first."""
    problems = sorted(official(contract).values(), key=contract.multiply_adds)
    return [problem for problem in problems if contract.multiply_adds(problem) <= _TIMES * contract.most]


def paths(done: SimulationResult) -> Paths:
    """Return what tells the kernels of a call from others; empty if it failed or launched none."""
    if done.call is None or done.errors:
        return frozenset()
    return frozenset((one.kernel, one.block, one.cluster, one.shared_bytes) for one in done.call.launches)


def unlaunched(own: Paths, launched: Mapping[str, Paths]) -> dict[Path, list[str]]:
    """Return the paths that are taken for something and are not among some others, with what they are taken for.

    Args:
        own: The others.
        launched: Paths by what they are taken for.
    """
    found: dict[Path, list[str]] = {}
    for what, taken in launched.items():
        for path in sorted(taken - own, key=repr):
            found.setdefault(path, []).append(what)
    return found


def described(missing: Mapping[Path, Sequence[str]], own: Paths, searched: Mapping[Path, Problem]) -> Iterator[str]:
    """Yield what is said of paths that are not taken.

    Args:
        missing: The paths (``unlaunched``).
        own: The paths that are taken.
        searched: Problems on which the missing ones are searched for races.
    """
    kernels = {kernel for kernel, *_ in own}
    for path in list(missing)[:_KERNELS]:
        kernel, block, cluster, shared = path
        how = f" with a block of {block}, a cluster of {cluster} and {shared} bytes of shared memory"
        what = missing[path]
        others = f" and {len(what) - _NAMED} more" if len(what) > _NAMED else ""
        where = f"; races are searched for on {searched[path].name}" if path in searched else ""
        name = f"{short_kernel(kernel)}{how if kernel in kernels else ''}"
        yield f"not launched here: {name}, which is for {', '.join(what[:_NAMED])}{others}{where}"
    if len(missing) > _KERNELS:
        yield f"not launched here: {plural(len(missing) - _KERNELS, 'more kernel')}"


def best(calls: Mapping[int, SimulatedCall]) -> int:
    """Return the key of the call that refills most rings, of several the deepest; the first of equal ones."""
    scores = {key: [ring.stages for ring in rings_of(call).values() if _wraps(ring)] for key, call in calls.items()}
    return max(scores, key=lambda key: (len(scores[key]), sum(scores[key])))


def wraps(call: SimulatedCall) -> bool:
    """Return whether a call refills every ring that completes several phases, and there is one."""
    several = [ring for ring in rings_of(call).values() if ring.iterations > 1]
    return bool(several) and all(map(_wraps, several))


def of_k(calls: Mapping[int, SimulatedCall], chosen: int) -> Iterator[object]:
    """Yield the keys (``rings_of``) of the chosen call's rings whose phases differ in a call with another k.

    A ring is compared with rings of as many stages that the same statement initialises. One that no other call has may
    depend on k.
    """
    others = [ring for key, call in calls.items() if key != chosen for ring in rings_of(call).values()]
    for key, ring in rings_of(calls[chosen]).items():
        same = [other.iterations for other in others if _name(other) == _name(ring)]
        if not same or any(phases != ring.iterations for phases in same):
            yield key


def elsewhere(calls: Mapping[int, SimulatedCall], chosen: int) -> Iterator[str]:
    """Yield the rings of several stages that the chosen call does not refill, though another k has them."""
    refilled = {_name(ring) for ring in rings_of(calls[chosen]).values() if _wraps(ring)}
    own = {_name(ring) for ring in rings_of(calls[chosen]).values()}
    most: dict[str, tuple[int, SimulatedRing]] = {}
    for k, call in calls.items():
        for ring in rings_of(call).values():
            name = _name(ring)
            if ring.stages > 1 and name not in refilled and (name not in most or _more(ring, most[name][1])):
                most[name] = k, ring
    for name, (k, ring) in most.items():
        if _wraps(ring):
            yield f"not refilled here: {name} of the kernel for k = {k}"
        elif name not in own:
            yield f"no official k refills {name}, which completes {plural(ring.iterations, 'phase')} for k = {k}"


def _more(ring: SimulatedRing, other: SimulatedRing) -> bool:
    return (ring.refills, ring.iterations) > (other.refills, other.iterations)


def _wraps(ring: SimulatedRing) -> bool:
    return ring.refills >= REFILLS


def _name(ring: SimulatedRing) -> str:
    return f"{name_of(ring)} ({plural(ring.stages, 'stage')})"

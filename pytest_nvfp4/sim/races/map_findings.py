"""Findings about tensor maps in global memory: CTAs that share one, and a map that a load may still read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import RACE, WARNING
from pytest_nvfp4.sim.races.findings import Reporter
from pytest_nvfp4.sim.races.map_uses import MapAccesses


class MapPair(NamedTuple):
    """Two accesses to the tensor map at an address that lack an order, and whether each writes."""

    address: int
    old: Access
    old_writes: bool
    new: Access
    new_writes: bool


def pairs_of_processes(earlier: Sequence[MapAccesses], later: Sequence[MapAccesses]) -> Iterator[MapPair]:
    """Yield for each map a pair of accesses of different CTAs, from two processes, one of which writes.

    Nothing orders them: CTAs that communicate stay in one process (``run.parallel``).
    """
    known: dict[int, list[MapAccesses]] = {}
    for accesses in earlier:
        known.setdefault(accesses.address, []).append(accesses)
    for second in later:
        for first in known.get(second.address, ()):
            pairs = (
                MapPair(second.address, old, old_writes, new, new_writes)
                for old, old_writes in ((first.write, True), (first.use, False))
                for new, new_writes in ((second.write, True), (second.use, False))
                if old is not None and new is not None and (old_writes or new_writes) and old.warp.cta != new.warp.cta
            )
            yield from (pair for pair, _ in zip(pairs, range(1), strict=False))


def report_shared_map(reporter: Reporter, name: str, pair: MapPair) -> None:
    """Report accesses of different CTAs to one tensor map, once for all maps of the launch."""
    old, new = pair.old, pair.new
    first, second = f"{reporter.messages.line(old.at)} in {old.warp}", f"{reporter.messages.line(new.at)} in {new.warp}"
    doing = f"{second} {'overwrites' if pair.new_writes else 'uses'} tensor map {name}"
    reporter.other(
        RACE,
        f"{doing} while {first} may still {'write' if pair.old_writes else 'use'} it: the two CTAs share the map, and "
        "nothing orders them; equal bytes are no excuse, because the TMA may read a map that is partly written",
        "a map for each CTA: index the buffer of the maps by the CTA (tensormaps[None, i, cta]), not by the group or a "
        "constant; or let one CTA write the map before any other uses it: behind its release fence a flag "
        "(st.release.gpu), and in the others ld.acquire.gpu of the flag and fence.proxy.tensormap::generic.acquire.gpu",
        warp=new.warp,
        at=new.at,
        group=("shared tensor map",),
        note=f"the same: {doing}, and {first} {'writes' if pair.old_writes else 'uses'} it",
    )


def report_unread_map(reporter: Reporter, name: str, old: Access, new: Access) -> None:
    """Report a warp that overwrites a map behind a wait for bulk groups, which does not wait for its loads."""
    load, line = reporter.messages.line(old.at), reporter.messages.line(new.at)
    reporter.other(
        WARNING,
        f"{line} in {new.warp} overwrites tensor map {name}, which the tensor load at {load} in "
        "the same warp may not have read: cp.async.bulk.wait_group waits for stores only, and no wait for the load's "
        "bytes precedes; the tensor map manager and the grouped GEMMs of CuTe DSL omit this wait, and results of "
        "kernels without it were corrupted on an H200 (DeepGEMM 343)",
        f"wait in this warp for the full barrier of the last stage that {load} has filled, before the map is updated",
        warp=new.warp,
        at=new.at,
        group=("unread tensor map",),
    )

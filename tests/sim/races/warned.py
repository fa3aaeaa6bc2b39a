"""Kernels with every wait and fence that tcgen05 asks for, and the same with one kind of them, or one, left out.

In a process of its own, because the DSL reads its environment when it is imported: ``python -m tests.sim.races.warned
FOLDER [TARGET...]`` prints a line of JSON a program, ``WARNED {...}``, with what is said with warnings on.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect
from pytest_nvfp4.sim.races.detector import Detector
from tests.sim.mutants.mutate import Edit, Listing, Site
from tests.sim.races.rerun import Again, reruns
from tests.sim.races.seed import places

TARGETS = ("map_updates", "persistent_static", "mma_a_from_tmem", "two_cta_256_2x1")
WAIT = "tcgen05.wait::ld.sync.aligned;"
BEFORE = "tcgen05.fence::before_thread_sync;"
AFTER = "tcgen05.fence::after_thread_sync;"


def _fenced(listing: Listing, *, without: str = "") -> str:
    """A wait behind every load, fences around whatever synchronises threads; ``without`` leaves out one of these."""
    wait, before, after = (text if text != without else "" for text in (WAIT, BEFORE, AFTER))
    edits: list[Edit] = []
    for site in listing.sites:
        parts = site.instruction.parts
        text = listing.ptx[site.start : site.end]
        if parts[:2] == ("tcgen05", "wait::ld") or parts[1:2] in (
            ("fence::before_thread_sync",),
            ("fence::after_thread_sync",),
        ):
            edits.append(Edit(site.start, site.end, ""))
        elif parts[:2] == ("tcgen05", "ld"):
            edits.append(Edit(site.start, site.end, f"{text} {wait}"))
        elif parts[0] in ("bar", "barrier"):
            edits.append(Edit(site.start, site.end, f"{before} {text} {after}"))
        elif parts[0] == "mbarrier" and parts[1].startswith("arrive"):
            edits.append(Edit(site.start, site.end, f"{before} {text}"))
        elif parts[0] == "mbarrier" and parts[1].endswith("_wait"):
            edits.append(Edit(site.start, site.end, f"{text} {after}"))
    return listing.edited(edits)


def _alone(listing: Listing) -> Iterable[tuple[str, str]]:
    """The kernel as it is less one of its waits and fences each."""
    wanted = (
        ("tcgen05", "wait::ld"),
        ("tcgen05", "fence::before_thread_sync"),
        ("tcgen05", "fence::after_thread_sync"),
    )
    for site in listing.sites:
        if site.instruction.parts[:2] in wanted:
            yield f"{site.instruction.parts[1]} #{_number(listing, site)}", listing.edited(site.drop())


def _number(listing: Listing, site: Site) -> int:
    same = [one for one in listing.sites if one.instruction.parts == site.instruction.parts]
    return same.index(site)


class _Target:
    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False

    def __call__(self, again: Again) -> None:
        if self.done:
            return
        self.done = True
        assert again.launch.module.ptx is not None
        listing = Listing(again.launch.module.ptx, again.launch.kernel)
        programs: list[tuple[str, str]] = [("as it is", listing.ptx), ("fenced", _fenced(listing))]
        for name, text in (("wait::ld", WAIT), ("before_thread_sync", BEFORE), ("after_thread_sync", AFTER)):
            programs.append((f"fenced without {name}", _fenced(listing, without=text)))
        if self.name == "map_updates":
            programs += _alone(listing)
        files = {
            site.instruction.location.file.rsplit("/", 1)[-1]: site.instruction.location.file
            for site in listing.sites
            if site.instruction.location is not None
        }
        for name, ptx in programs:
            outcome = again.run(ptx, detector=Detector(warnings=True))
            told = [
                {
                    "kind": finding.kind,
                    "message": finding.message,
                    "lines": places(
                        {"message": finding.message},
                        lambda file, number: linecache.getline(files.get(file, file), number).strip(),
                    ),
                }
                for finding in outcome.all
            ]
            print("WARNED " + json.dumps({"target": self.name, "name": name, "findings": told}), flush=True)  # noqa: T201


def main() -> None:
    """Run what the command line names, or everything."""
    from tests.sim.races.worker import _feature, _map_updates

    folder = Path(sys.argv[1])
    os.environ.update(redirect.environment(folder, arch="sm_100a"))
    for name in sys.argv[2:] or TARGETS:
        with reruns(_Target(name)):
            if name == "map_updates":
                _map_updates(folder)
            else:
                _feature(name)


if __name__ == "__main__":
    main()


def check(findings: list[dict[str, Any]], wanted: set[tuple[str, str]]) -> None:
    """Each finding has a pair that is wanted, and each that is wanted has a finding."""
    assert {finding["kind"] for finding in findings} <= {"race-warning"}
    left = set(wanted)
    for finding in findings:
        later, earlier = finding["lines"][:2]
        pair = next((pair for pair in wanted if later.startswith(pair[0]) and earlier.startswith(pair[1])), None)
        assert pair is not None, (later, earlier, wanted)
        left.discard(pair)
    assert left == set()

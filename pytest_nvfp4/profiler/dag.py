"""Edges between regions, as ``iket.dag(...).save(FILE)`` writes them: arrows of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.profiler.perfetto_trace import Slice

_BOUNDS = Bounds(size=1 << 20, values=40_000)


@dataclass(frozen=True, slots=True)
class Edge:
    """A region that makes what another one uses; ``label`` says what, and by which mechanism."""

    source: str
    target: str
    label: str = ""


def read(file: Path) -> list[Edge]:
    """Return the edges of a file. Raises DoorError if it cannot be read or holds something else."""
    source = str(file)
    values = read_json(read_file(file, source=source, most=_BOUNDS.size), source=source, bounds=_BOUNDS)
    try:
        return [_edge(each) for each in values["edges"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DoorError(source, f"holds no edges of a DAG of IKET: {type(error).__name__} {error}") from error


def _edge(values: dict[str, Any]) -> Edge:
    texts = [values["source"], values["target"], values.get("label", ""), values.get("via", "")]
    if not all(isinstance(text, str) and len(text) < 200 for text in texts):
        raise ValueError("an edge has a source, a target, and perhaps label and via, all short texts")
    source, target, label, via = texts
    return Edge(source, target, " by ".join(filter(None, (label, via))))


def with_arrows(slices: Sequence[Slice], edges: Sequence[Edge]) -> list[Slice]:
    """Return slices with arrows: within a process, the nth slice of an edge's source leads to the nth of its target.

    Where there are not as many of both, each slice of the target is led to by the last one of the source that ended
    before it began.
    """
    made = list(slices)
    count = 0
    for process in dict.fromkeys(each.process for each in slices):
        own = sorted((each.begin_ns, n) for n, each in enumerate(slices) if each.process == process)
        for edge in edges:
            sources = [n for _, n in own if slices[n].name == edge.source]
            targets = [n for _, n in own if slices[n].name == edge.target]
            for place, target in enumerate(targets):
                if len(sources) == len(targets):
                    source = sources[place]
                else:
                    before = [n for n in sources if slices[n].end_ns <= slices[target].begin_ns]
                    if not before:
                        continue
                    source = max(before, key=lambda n: slices[n].end_ns)
                count += 1
                for n, key in ((source, "leads to"), (target, "comes from")):
                    other = edge.target if n == source else edge.source
                    note = f"{other}: {edge.label}" if edge.label else other
                    details = {**made[n].details, key: note}
                    made[n] = replace(made[n], flows=(*made[n].flows, count), details=details)
    return made

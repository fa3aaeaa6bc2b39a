"""``nvfp4 history``: counters and modelled times of a kernel over the git revisions of its snapshots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import click

from pytest_nvfp4.bench.cost import as_number
from pytest_nvfp4.bench.modelled_facts import ORIGIN, TIME
from pytest_nvfp4.cli import output, revisions
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.cli.sides import of_snapshot
from pytest_nvfp4.cli.subject import matching, relative
from pytest_nvfp4.report.document import Block, Column, Document, Items, Section, Styled, Table
from pytest_nvfp4.report.trend import change_text, number_text, sparkline, trend_svg, values_of
from pytest_nvfp4.settings import find_root
from pytest_nvfp4.text import clip

NOTE = "counters are simulated, and times are modelled; nothing here was measured"
_KINDS = ("cost", "model")
_LAUNCH = re.compile(r"launch\.\d+\.")
_DEFAULT = (
    TIME,
    "tma.load.bytes",
    "tma.store.bytes",
    "global.load.sectors",
    "global.store.sectors",
    "shared.load.conflicts",
    "shared.store.conflicts",
    "instructions",
    "flops.padding",
    "ctas",
)
"""Counters that are shown without ``--counter``, as far as there are any."""
_WORKING = "working tree"


@dataclass
class _Point:
    """What the snapshots of one revision say of one problem.

    Attributes:
        label: The commit, shortened, and its subject; or the working tree.
        commit: The commit; empty for the working tree.
        date: Its date, ISO 8601.
        counters: Numbers by name, added up over launches.
        origin: What the modelled time follows from.
    """

    label: str
    commit: str
    date: str
    counters: dict[str, float] = field(default_factory=dict)
    origin: tuple[str, ...] = ()


@click.command("history")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--problem", "names", multiple=True, metavar="NAME", help="Only this problem; may be repeated.")
@click.option(
    "--counter",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Only matching counters, such as 'tma.*' or modelled_us; may be repeated.  [default: the most important]",
)
@click.option("--last", type=click.IntRange(1, 1000), default=20, show_default=True, help="Number of revisions.")
@click.option(
    "--snapshots",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder of the project's snapshots.  [default: snapshots beside pyproject.toml]",
)
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the trends as a picture."
)
@document_options()
def history_command(
    kernel: Path,
    *,
    names: tuple[str, ...],
    patterns: tuple[str, ...],
    last: int,
    snapshots: Path | None,
    svg: Path | None,
) -> Document:
    """Show how the counters and modelled times of KERNEL changed, by git revision of its snapshots.

    Each revision that changed a snapshot of the checks cost or model is a point, the oldest first, and so is the
    working tree if it differs from the newest. Numbers are added up over the launches of a call. Times that follow
    from another device table or version of the model than the newest are left out, because they are not comparable.
    """
    folder = _folder(kernel, snapshots)
    found = _history(folder, last)
    chosen = {problem: points for problem, points in found.items() if not names or problem in names}
    if not found:
        raise InputError(f"{kernel}: no revision has snapshots of cost or model in {folder}; `pytest {kernel} -k cost "
                         "--snapshot-update` writes them")  # fmt: skip
    if unknown := [name for name in names if name not in found]:
        raise InputError(f"{kernel}: no snapshot is of {unknown[0]}; there are those of {', '.join(found)}")
    shown = {problem: _counters(points, patterns) for problem, points in chosen.items()}
    if not any(shown.values()):
        known = sorted({name for points in chosen.values() for point in points for name in point.counters})
        raise InputError(
            f"{kernel}: no counter matches {', '.join(patterns)}; known are {clip(', '.join(known), 2000)}"
        )
    if svg is not None:
        _write_svg(svg, kernel, chosen, shown)
    sections = [_section(problem, points, shown[problem]) for problem, points in chosen.items()]
    data = {
        "kernel": str(kernel),
        "note": NOTE,
        "problems": [_as_data(problem, points) for problem, points in chosen.items()],
    }
    return Document(f"History of {kernel}", [*sections, Styled(NOTE, "muted")], data)


def _folder(kernel: Path, snapshots: Path | None) -> Path:
    """Return the folder of a kernel's snapshots, which need not exist any more."""
    if kernel.is_dir():
        return kernel.resolve()
    if kernel.suffix != ".py":
        raise InputError(f"{kernel}: is neither a kernel's Python file nor the folder of its snapshots")
    root = find_root(kernel.resolve())
    below = PurePosixPath(relative(str(kernel.resolve()), root))
    return (snapshots or root / "snapshots").resolve() / below.with_suffix("")


def _history(folder: Path, last: int) -> dict[str, list[_Point]]:
    """Return the points by problem, the oldest first. Raises InputError if there is no repository."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    commits = revisions.changed(folder, cwd=existing, last=last)
    found: dict[str, list[_Point]] = {}
    for commit in reversed(commits):
        label = f"{commit.id[:9]} {clip(commit.subject, 40)}"
        _add(found, _Point(label, commit.id, commit.date), revisions.files_below(folder, commit.id, cwd=existing))
    if folder.is_dir():
        here = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        before = {problem: points[-1].counters for problem, points in found.items()}
        _add(found, _Point(_WORKING, "", ""), here)
        for problem, points in found.items():
            if points[-1].label == _WORKING and points[-1].counters == before.get(problem):
                points.pop()
    return found


def _add(found: dict[str, list[_Point]], blank: _Point, files: Mapping[str, bytes]) -> None:
    """Add a point of a revision to each problem that its snapshots are of."""
    points: dict[str, _Point] = {}
    for name, data in files.items():
        kind = name.partition("[")[0]
        if kind not in _KINDS:
            continue
        try:
            side = of_snapshot(data, label=name)
        except InputError as error:
            output.note(f"{blank.label}: {error.message}")
            continue
        if kind not in side.facts:
            continue
        problem = side.header.get("problem", "")
        point = points.setdefault(problem, _Point(blank.label, blank.commit, blank.date))
        point.counters |= _numbers(side.facts[kind])
        if kind == "model":
            point.origin = tuple(side.header.get(key, "") for key in ORIGIN)
    for problem, point in points.items():
        found.setdefault(problem, []).append(point)


def _numbers(facts: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers among facts by their names without the launch, added up over launches."""
    total: dict[str, float] = {}
    for name, text in facts.items():
        value = as_number(text) if name != TIME else _float(text)
        counter = _LAUNCH.sub("", name)
        if isinstance(value, str) or (counter == TIME and name != TIME):
            continue
        total[counter] = total.get(counter, 0) + value
    return total


def _float(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _comparable(points: Sequence[_Point]) -> list[tuple[str, dict[str, float]]]:
    """Return labels and counters, without the modelled times that are not comparable with the newest."""
    newest = next((point.origin for point in reversed(points) if point.origin), ())
    return [
        (point.label, {key: value for key, value in point.counters.items() if key != TIME or point.origin == newest})
        for point in points
    ]


def _counters(points: Sequence[_Point], patterns: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(name for point in reversed(points) for name in point.counters))
    if patterns:
        chosen = matching(known, patterns)
        return [name for name in known if name in chosen]
    return [name for name in _DEFAULT if name in known] or known


def _section(problem: str, points: Sequence[_Point], names: Sequence[str]) -> Section:
    trend = _comparable(points)
    columns = (
        Column("counter", code=True),
        Column("first", right=True),
        Column("last", right=True),
        Column("change", right=True),
        Column("trend"),
    )
    rows = []
    for name in names:
        values = values_of(trend, name)
        known = [value for value in values if value is not None]
        first, newest = (number_text(known[0]), number_text(known[-1])) if known else (None, None)
        rows.append([name, first, newest, change_text(values), sparkline(values)])
    left_out = sum(TIME in point.counters and TIME not in kept for point, (_, kept) in zip(points, trend, strict=True))
    blocks: list[Block] = [Table(columns, rows), Section("revisions", [Items(list(_revisions(points, names)))])]
    if left_out:
        blocks.append(f"{left_out} modelled times are of another table or version of the model, and are left out")
    return Section(f"on {problem}", blocks)


def _revisions(points: Sequence[_Point], names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each revision: what it changed against the one before."""
    before: Mapping[str, float] = {}
    for point, (_, counters) in zip(points, _comparable(points), strict=True):
        changed = [
            f"{name} {number_text(before[name])} -> {number_text(counters[name])}"
            for name in names
            if name in before and name in counters and before[name] != counters[name]
        ]
        what = "; ".join(changed) or ("the first" if not before else "no change of these")
        yield f"{point.label}: {what}"
        before = {**before, **counters}


def _write_svg(
    file: Path, kernel: Path, found: Mapping[str, Sequence[_Point]], shown: Mapping[str, Sequence[str]]
) -> None:
    if len(found) > 1:
        raise InputError(f"--svg shows one problem: name one of {', '.join(found)} with --problem")
    for problem, points in found.items():
        title = f"{kernel} on {problem}: {NOTE}"
        output.write_file(file, trend_svg(_comparable(points), shown[problem], title=title) + "\n")
        output.note(f"wrote {file}")


def _as_data(problem: str, points: Sequence[_Point]) -> dict[str, Any]:
    comparable = _comparable(points)
    return {
        "problem": problem,
        "revisions": [
            {
                "label": point.label,
                "commit": point.commit or None,
                "date": point.date or None,
                "counters": point.counters,
                "model": dict(zip(ORIGIN, point.origin, strict=False)) or None,
                "time_is_comparable": TIME in kept,
            }
            for point, (_, kept) in zip(points, comparable, strict=True)
        ],
    }

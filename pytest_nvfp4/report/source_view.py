"""A kernel's source with what the simulator counted, and what the model timed, beside each line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.report.chart import amount

_TRAFFIC = tuple(f"{unit}.{way}" for unit in ("tma", "bulk") for way in ("load", "store", "reduce"))
_COLUMNS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "Instructions": ("executions of instructions by warps", {"instructions": 1}),
    "Sectors": (
        "32-byte sectors of global memory, those that TMA delivers among them",
        dict.fromkeys(
            (
                *("global.load.sectors", "global.store.sectors", "cp_async.sectors"),
                *(f"{unit}.load.delivered_sectors" for unit in ("tma", "bulk")),
                *(f"{each}.sectors" for each in _TRAFFIC if not each.endswith("load")),
            ),
            1,
        ),
    ),
    "Conflicts": (
        "passes through the banks of shared memory beyond the fewest possible",
        {"shared.load.conflicts": 1, "shared.store.conflicts": 1},
    ),
    "TMA bytes": ("bytes of tensor and bulk copies", dict.fromkeys((f"{each}.bytes" for each in _TRAFFIC), 1)),
    "MMA FLOP": ("operations of matrix instructions", {"mma.flops": 1, "mma.macs": 2, "wgmma.macs": 2}),
    "Waits": (
        "waits for mbarriers, and arrivals of warps at barriers of the CTA",
        {"mbarrier.waits": 1, "barrier.cta.arrivals": 1},
    ),
}
"""Columns by heading: what they count, and the weight of each counter."""
_TIME = "us, modelled"
_CONTEXT = 2
"""Lines shown before and after one with a value."""
_LEAST_FOLD = 4
"""Fewest lines that are worth a fold."""
_MOST_BYTES = 400_000
_MOST_FILES = 4


@dataclass(frozen=True, slots=True)
class ValueCell:
    """A value of a line: its text, empty for none, and its share of the greatest value of the column in percent."""

    text: str
    percent: int


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line: number, text, and a cell for each column. Untrusted text."""

    number: int
    text: str
    cells: Sequence[ValueCell]


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """Consecutive lines; ``folded`` if nothing is known of them."""

    lines: Sequence[SourceLine]
    folded: bool


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file: its name and blocks; without blocks, it could not be read."""

    name: str
    blocks: Sequence[SourceBlock]


@dataclass(frozen=True, slots=True)
class SourceView:
    """The source of a kernel.

    Attributes:
        columns: Heading and explanation of each column.
        files: The files, that with most instructions first.
        absent: Headings of columns that are zero on every line.
        elsewhere: Sum of each column in files that are not shown, and without a line.
    """

    columns: Sequence[tuple[str, str]]
    files: Sequence[SourceFile]
    absent: Sequence[str]
    elsewhere: Sequence[str]


def source_view(call: SimulatedCall, modelled: ModelledCall | None, *, own: Mapping[str, Path]) -> SourceView:
    """Return the source with values beside its lines.

    Args:
        call: A detailed call.
        modelled: The modelled time of such a call; None without one.
        own: The files that may be read, by the name that sources give them: the PTX of a kernel may name any.
    """
    values: dict[tuple[str, int], Counter[str]] = {}
    for (file, line), of_line in _values(call, modelled).items():
        values.setdefault((_own_name(file, own), line), Counter()).update(of_line)
    titles = {name: explanation for name, (explanation, _) in _COLUMNS.items()}
    titles[_TIME] = "time on the critical path"
    shown = [name for name in titles if any(of_line.get(name) for of_line in values.values())]
    most = {name: max(of_line.get(name, 0) for of_line in values.values()) for name in shown}
    by_file: dict[str, dict[int, Counter[str]]] = {}
    elsewhere: Counter[str] = Counter()
    for (file, line), of_line in values.items():
        if file in own and line:
            by_file.setdefault(file, {})[line] = of_line
        else:
            elsewhere.update(of_line)
    order = sorted(by_file, key=lambda file: -sum(each["Instructions"] for each in by_file[file].values()))
    files = [_file(file, own[file], by_file[file], shown, most) for file in order[:_MOST_FILES]]
    for file in order[_MOST_FILES:]:
        for of_line in by_file[file].values():
            elsewhere.update(of_line)
    rest = [f"{name.lower()} {amount(elsewhere[name])}" for name in shown if elsewhere[name]]
    absent = [name for name in titles if name not in shown and (name != _TIME or modelled is not None)]
    return SourceView([(name, titles[name]) for name in shown], files, absent, rest)


def _own_name(file: str, own: Mapping[str, Path]) -> str:
    """Return the name of one of the kernel's own files for that of a source, which may be of another folder.

    A module that was compiled for the trace has the lines of the user's file, one of a job those of its copy there.
    """
    if file in own:
        return file
    fitting = [name for name, path in own.items() if path.name == file.rpartition("/")[2]]
    return fitting[0] if len(fitting) == 1 else file


def _values(call: SimulatedCall, modelled: ModelledCall | None) -> dict[tuple[str, int], Counter[str]]:
    """Return the values by file, line and column."""
    values: dict[tuple[str, int], Counter[str]] = {}
    for launch in call.launches:
        for line in launch.detail.lines if launch.detail is not None else ():
            of_line = values.setdefault(_place(line.source), Counter())
            for name, (_, weights) in _COLUMNS.items():
                of_line[name] += sum(weight * line.counters.get(counter, 0) for counter, weight in weights.items())
    for timed in modelled.launches if modelled is not None else ():
        for part in timed.path:
            of_line = values.setdefault(_place(part.source), Counter())
            of_line[_TIME] += part.us  # type: ignore[assignment]
    return values


def _place(source: str) -> tuple[str, int]:
    file, _, line = source.rpartition(":")
    return (file, int(line)) if line.isascii() and line.isdigit() else (source, 0)


def _file(
    name: str, path: Path, values: Mapping[int, Counter[str]], columns: Sequence[str], most: Mapping[str, float]
) -> SourceFile:
    try:
        data = path.read_bytes()
    except OSError:
        return SourceFile(name, ())
    if len(data) > _MOST_BYTES:
        return SourceFile(name, ())
    texts = data.decode("utf-8", "replace").splitlines()
    near = _near(values, texts)
    blocks: list[SourceBlock] = []
    for shown, numbers in groupby(range(1, len(texts) + 1), key=near.__contains__):
        lines = []
        for number in numbers:
            of_line = values.get(number, Counter())
            cells = [_cell(of_line[each], most[each]) for each in columns]
            lines.append(SourceLine(number, texts[number - 1].expandtabs(4), cells))
        blocks.append(SourceBlock(lines, not shown))
    return SourceFile(name, blocks)


def _near(values: Collection[int], texts: Sequence[str]) -> set[int]:
    """Return the numbers of the lines to show: those with a value, and what surrounds them."""
    near = {line + by for line in values for by in range(-_CONTEXT, _CONTEXT + 1) if 0 < line + by <= len(texts)}
    kept = {number for number in near if number in values or texts[number - 1].strip()}
    for before, after in pairwise(sorted(kept)):
        if after - before <= _LEAST_FOLD:
            kept.update(range(before, after))
    return kept


def _cell(value: float, most: float) -> ValueCell:
    return ValueCell(amount(value) if value else "", round(100 * value / most) if most else 0)

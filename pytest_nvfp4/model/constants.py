"""Constants of devices: one TOML table for each device, and every constant with its unit, source and mark.

A table holds physical quantities of a GPU, in the clock domain that they scale with: the units of an SM in cycles of
its clock, L2 at a reference clock, DRAM and launches in time. A table may be *based on* another: what it does not state
is taken from there, and is then marked ``sibling``. A constant without a source cannot be loaded.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pytest_nvfp4.isolation.door.models import fault
from pytest_nvfp4.model.calibrated import calibrated_names, calibrated_path

__all__ = [
    "DEVICES",
    "MARKS",
    "UNITS",
    "Constant",
    "ConstantsError",
    "DeviceConstants",
    "MatrixRate",
    "load_device",
    "read_device",
    "shipped_device",
]

Mark = Literal["measured_here", "published", "sibling", "fitted", "guessed"]
MARKS: tuple[str, ...] = get_args(Mark)

UNITS: Mapping[str, str] = {
    # The chip.
    "sms": "SM",
    "clusters_of_2": "cluster",
    "clusters_of_4": "cluster",
    "clusters_of_8": "cluster",
    "clusters_of_16": "cluster",
    "clock": "GHz",
    # An SM: TMA.
    "tma_issue": "cycle/instruction",
    "tma_row": "cycle/row",
    "tma_latency": "cycle",
    "tma_latency_per_kib": "cycle/KiB",
    "store_rate": "B/cycle",
    "store_latency": "cycle",
    # An SM: tensor core, tensor memory, shared memory.
    "commit": "cycle",
    "tmem_copy": "B/cycle",
    "tmem_load_latency": "cycle",
    "tmem_column": "cycle/column",
    "tmem_allocate": "cycle",
    "shared_port": "B/cycle",
    "remote_latency": "cycle",
    # An SM: cycles of one PTX instruction of a warp that runs alone, by class.
    "alu": "cycle/instruction",
    "fma": "cycle/instruction",
    "special": "cycle/instruction",
    "shared_load": "cycle/instruction",
    "shared_store": "cycle/instruction",
    "branch": "cycle/instruction",
    "convert": "cycle/instruction",
    "move": "cycle/instruction",
    "other": "cycle/instruction",
    # An SM: order between warps.
    "barrier_arrive": "cycle",
    "barrier_wait": "cycle",
    "fence": "cycle",
    "fence_near": "cycle",
    "map_change": "cycle",
    "map_acquire": "cycle",
    "map_acquire_changed": "cycle",
    # L2.
    "l2_clock": "GHz",
    "l2_clock_exponent": "1",
    "l2_read": "TB/s",
    "l2_shared": "1",
    "l2_multicast": "1",
    "l2_write": "TB/s",
    "l2_capacity": "MB",
    "load_latency": "cycle",
    "load_rate": "B/cycle",
    "atomic_latency": "cycle",
    # DRAM and launches.
    "dram": "TB/s",
    "dram_written": "1",
    "dram_latency": "ns",
    "cta_start": "ns",
    "launch": "ns",
    "launch_dependent": "ns",
    "launch_graph": "ns",
    "launch_alone": "ns",
}
"""Unit of each constant. A row is at most 128 B of a TMA box; an SM cycle is meant where no clock is named.

``l2_shared`` is the rate of lines that several clusters load, over ``l2_read``; ``dram_written`` is the time of a line
written to DRAM, over that of one that is read; ``launch_alone`` is for a kernel that nothing of its kind precedes.
"""

_MAY_BE_ZERO = ("tma_latency_per_kib", "commit", "barrier_arrive", "l2_clock_exponent", "tma_issue", "cta_start")


_MOST_COUNTED = 10_000
"""SMs or clusters of a device that a table may name: a replay holds the state of each."""


class ConstantsError(ValueError):
    """A device table is not valid."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Constant(_Strict):
    """One constant.

    Attributes:
        value: Value in ``unit``.
        unit: One of ``UNITS``.
        spread: Relative uncertainty (0.05: 5 %), as measured, as quoted or as judged.
        source: Page, table or measurement that the value comes from; for a guess, what it was judged from.
        mark: ``measured_here`` on ``device``, ``published`` for this device, ``sibling``: known of a related device,
            ``fitted`` to the points that ``points`` names, ``guessed``.
    """

    value: float = Field(ge=0, strict=False)
    unit: str
    spread: float = Field(ge=0, strict=False)
    source: str = Field(min_length=8)
    mark: Mark
    device: str = ""
    points: str = ""

    @model_validator(mode="after")
    def _evidence(self) -> Constant:
        if self.mark == "measured_here" and not self.device:
            raise ValueError("a constant marked measured_here needs `device`, the GPU it was measured on")
        if self.mark == "fitted" and not self.points:
            raise ValueError("a constant marked fitted needs `points`, the data it was fitted to")
        return self


MatrixRow = tuple[str, str, int, int, int, float, float]
"""Kind of the operands, place of A, CTAs, M, N, interval, latency."""
_Above0 = Annotated[float, Field(gt=0)]
_Row = Annotated[tuple[str, Literal["ss", "ts"], int, int, int, _Above0, _Above0], Field(strict=False)]


class _MatrixTable(_Strict):
    source: str = Field(min_length=8)
    mark: Mark
    device: str = ""
    half_rate_below: int = Field(default=0, ge=0)
    """Rows of M of one CTA below which a matrix instruction takes as long as with that many."""
    tile: int = Field(gt=0)
    """Elements of an accumulator that an SM updates in one cycle, for 32 B of K."""
    latency: float = Field(ge=0, strict=False)
    """Cycles from the end of an instruction's interval to the completion of its commit, for shapes without a row."""
    rows: list[_Row] = []
    """Kind of the operands, place of A (ss: shared memory, ts: tensor memory), CTAs, M, N, interval, latency."""


class Observation(_Strict):
    """A measured value that no replay needs: what a calibration found besides."""

    value: float = Field(ge=0, strict=False)
    unit: str
    spread: float = Field(ge=0, strict=False)
    source: str = Field(min_length=8)


class _Table(_Strict):
    name: str = Field(min_length=1, max_length=100)
    title: str = Field(min_length=1, max_length=1000)
    arch: list[str] = Field(min_length=1)
    format: Literal[1] = 1
    """Version of the format; ``version`` is that of the table's values."""
    version: int = Field(ge=1)
    based_on: str = ""
    constant: dict[str, Constant] = {}
    matrix: _MatrixTable | None = None
    observed: dict[str, Observation] = {}


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """Time of one matrix instruction, in SM cycles.

    Attributes:
        interval: Cycles that the tensor cores of each CTA are busy.
        latency: Cycles from the end of this interval to the signal of a commit.
        exact: Whether the shape is in the table (else a law of the device holds).
    """

    interval: float
    latency: float
    exact: bool


@dataclass(frozen=True, slots=True)
class DeviceConstants:
    """The constants of one device.

    Attributes:
        constants: All of ``UNITS``.
        matrix: Rows of matrix instructions: (kind, place of A, CTAs, M) -> sorted (N, interval, latency).
        digest: Digest of all values; a snapshot stores that of its table.
        origin: The user's own file that the table comes from; empty for a shipped one.
        observed: Further measured values.
    """

    name: str
    title: str
    arch: tuple[str, ...]
    version: int
    constants: Mapping[str, Constant]
    matrix: Mapping[tuple[str, str, int, int], tuple[tuple[int, float, float], ...]]
    matrix_tile: int
    matrix_half_rate_below: int
    matrix_latency: float
    matrix_source: str
    matrix_mark: Mark
    origin: str = ""
    observed: Mapping[str, Observation] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """Return the value of a constant, in its unit. Raises KeyError."""
        return self.constants[name].value

    @property
    def digest(self) -> str:
        """Return a digest of everything that a replay depends on."""
        values = sorted((name, constant.value) for name, constant in self.constants.items())
        rest = (sorted(self.matrix.items()), self.matrix_tile, self.matrix_half_rate_below, self.matrix_latency)
        return hashlib.sha256(repr((self.name, values, rest)).encode()).hexdigest()[:16]

    def changed(self, **values: float) -> DeviceConstants:
        """Return the same device with other values of some constants (for fits and for what-if questions).

        Raises KeyError if there is no such constant.
        """
        constants = dict(self.constants)
        for name, value in values.items():
            constants[name] = constants[name].model_copy(update={"value": value})
        return replace(self, constants=constants)

    def clusters(self, size: int) -> int:
        """Return how many clusters of a size can be resident, with one CTA on each SM."""
        if size == 1:
            return int(self["sms"])
        known = [power for power in (2, 4, 8, 16) if power >= size]
        if not known:
            raise ConstantsError(f"device {self.name!r} has no number of resident clusters of {size} CTAs")
        if known[0] == size:
            return int(self[f"clusters_of_{size}"])
        return min(int(self["sms"]) // size, int(self[f"clusters_of_{known[0]}"] * known[0]) // size)

    def matrix_rate(self, kind: str, a_tmem: bool, ctas: int, m: int, n: int) -> MatrixRate:
        """Return the time of a matrix instruction of M x N over 32 B of K.

        The table's rows hold at their N and linearly between two. Elsewhere the law is: the interval is the larger of
        the accumulator's elements over the elements a cycle, and the operands in shared memory over its port; the
        latency is that of the device.
        """
        rows = self.matrix.get((_KINDS.get(kind, kind), "ts" if a_tmem else "ss", ctas, m), ())
        for own, interval, latency in rows:
            if own == n:
                return MatrixRate(interval, max(0.0, latency - interval), True)
        for low, high in pairwise(rows):
            if low[0] < n < high[0]:
                share = (n - low[0]) / (high[0] - low[0])
                interval = low[1] + share * (high[1] - low[1])
                latency = low[2] + share * (high[2] - low[2])
                return MatrixRate(interval, max(0.0, latency - interval), False)
        own_m = m / ctas
        full = max(own_m, self.matrix_half_rate_below) if ctas == 1 else own_m
        read = (0 if a_tmem else own_m) * 32 + n / ctas * 32
        return MatrixRate(max(full * n / self.matrix_tile, read / self["shared_port"]), self.matrix_latency, False)


_KINDS = {"tf32": "f16", "bf16": "f16", "mxf4": "mxf4nvf4", "u8": "i8", "s8": "i8", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}
"""Types of operands that the tables hold under another's name: their time for 32 B of K is the same."""


def _parse(text: str, origin: str) -> _Table:
    try:
        return _Table.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConstantsError(f"device table {origin} is not TOML: {error}") from error
    except ValidationError as error:
        if "format" in {item["loc"][0] for item in error.errors() if item["loc"]}:
            raise ConstantsError(f"device table {origin} {fault(error)}") from None
        lines = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()[:8]]
        raise ConstantsError(f"device table {origin} is not valid:\n  " + "\n  ".join(lines)) from error


def inherited(constant: Constant, base: DeviceConstants) -> Constant:
    """Return a constant of a related device as one of a device of which nothing better is known."""
    note = constant.source if constant.mark == "guessed" else f"of {base.name}: {constant.source}"
    mark: Mark = "guessed" if constant.mark == "guessed" else "sibling"
    return constant.model_copy(update={"mark": mark, "source": note, "spread": max(constant.spread, 0.2)})


def read_device(text: str, origin: str) -> DeviceConstants:
    """Return a device from the text of its table. Raises ConstantsError."""
    table = _parse(text, origin)
    base = shipped_device(table.based_on) if table.based_on else None
    constants = {name: inherited(constant, base) for name, constant in base.constants.items()} if base else {}
    constants.update(table.constant)
    wrong = [
        f"{name}: the unit is {constant.unit!r}, not {UNITS[name]!r}"
        for name, constant in constants.items()
        if name in UNITS and constant.unit != UNITS[name]
    ]
    wrong += [f"{name}: no such constant" for name in constants if name not in UNITS]
    wrong += [f"{name}: missing" for name in UNITS if name not in constants]
    wrong += [
        f"{name}: must be above 0"
        for name, constant in constants.items()
        if constant.value == 0 and name not in _MAY_BE_ZERO
    ]
    wrong += [
        f"{name}: must be a whole number from 1 to {_MOST_COUNTED}"
        for name, constant in constants.items()
        if UNITS.get(name) in ("SM", "cluster") and constant.value
        if not constant.value.is_integer() or constant.value > _MOST_COUNTED
    ]
    if table.matrix is None and base is None:
        wrong.append("matrix: missing")
    if table.matrix is not None:
        shapes = Counter(row[:5] for row in table.matrix.rows)
        wrong += [f"matrix: {shape} has {count} rows" for shape, count in shapes.items() if count > 1]
    if wrong:
        raise ConstantsError(f"device table {origin} is not valid:\n  " + "\n  ".join(wrong))
    if table.matrix is None:
        assert base is not None
        return replace(
            base,
            name=table.name,
            title=table.title,
            arch=tuple(table.arch),
            version=table.version,
            constants=constants,
            matrix_source=f"of {base.name}: {base.matrix_source}",
            matrix_mark="sibling",
            observed=table.observed,
        )
    matrix: dict[tuple[str, str, int, int], list[tuple[int, float, float]]] = {}
    for kind, place, ctas, m, n, interval, latency in table.matrix.rows:
        matrix.setdefault((kind, place, ctas, m), []).append((n, interval, latency))
    return DeviceConstants(
        name=table.name,
        title=table.title,
        arch=tuple(table.arch),
        version=table.version,
        constants=constants,
        matrix={key: tuple(sorted(rows)) for key, rows in matrix.items()},
        matrix_tile=table.matrix.tile,
        matrix_half_rate_below=table.matrix.half_rate_below,
        matrix_latency=table.matrix.latency,
        matrix_source=table.matrix.source,
        matrix_mark=table.matrix.mark,
        observed=table.observed,
    )


def _names() -> tuple[str, ...]:
    folder = files("pytest_nvfp4.model") / "devices"
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


DEVICES: tuple[str, ...] = _names()
"""Names of the shipped tables."""


_SHIPPED = "shipped:"


@cache
def shipped_device(name: str) -> DeviceConstants:
    """Return the shipped table of a device. Raises ConstantsError."""
    if name not in DEVICES:
        raise ConstantsError(f"there is no shipped device {name!r}; there are {', '.join(DEVICES)}")
    text = (files("pytest_nvfp4.model") / "devices" / f"{name}.toml").read_text(encoding="utf-8")
    return read_device(text, f"devices/{name}.toml")


def load_device(name: str) -> DeviceConstants:
    """Return a device: the user's own table of that name, else the shipped one; or the table at a path.

    ``shipped:NAME`` is the shipped table whether or not there is an own one. ``origin`` is the file that was taken.
    Raises ConstantsError.
    """
    if name.startswith(_SHIPPED):
        return shipped_device(name.removeprefix(_SHIPPED))
    own = calibrated_path(name)
    if Path(name).suffix != ".toml" and Path(name).name == name and own.is_file():
        try:
            return _from_file(own)
        except ConstantsError as error:
            hint = "`nvfp4 model calibrate` writes it anew; delete it to use the shipped table"
            raise ConstantsError(f"{error}\n{hint}") from None
    if name in DEVICES:
        return shipped_device(name)
    if Path(name).suffix == ".toml":
        return _from_file(Path(name))
    known = ", ".join(dict.fromkeys((*DEVICES, *calibrated_names())))
    raise ConstantsError(f"there is no device {name!r}; there are {known}, or give the path of a table (.toml)")


def _from_file(path: Path) -> DeviceConstants:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConstantsError(f"device table {path} cannot be read: {error}") from error
    return replace(read_device(text, str(path)), origin=str(path))


def describe(device: DeviceConstants) -> list[dict[str, Any]]:
    """Return one row a constant: name, value, unit, spread, mark, source."""
    return [
        {"name": name, **device.constants[name].model_dump(include={"value", "unit", "spread", "mark", "source"})}
        for name in UNITS
    ]

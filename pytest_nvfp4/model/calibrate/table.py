"""A device table of what was measured, over the shipped table of the device or of its nearest relative."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_nvfp4.model.calibrate.estimates import Estimate
from pytest_nvfp4.model.calibrate.fits import Fitted
from pytest_nvfp4.model.calibrate.readings import Gpu
from pytest_nvfp4.model.constants import UNITS, Constant, DeviceConstants, MatrixRow, inherited, shipped_device

_NAMES = (("b300", "b300"), ("b200", "b200"), ("h200", "h200"), ("h100", "h100"))
"""Part of a GPU's name, and the device."""
_RELATIVES = {(9, 0): "h200", (10, 0): "b200", (10, 3): "b300"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Name of the device that a GPU is, and the shipped table that states what is not measured."""

    name: str
    base: str


def identify(gpu: Gpu) -> Identity:
    """Return which device a GPU is. One without a shipped table has its own name, and a relative's constants."""
    plain = gpu.name.lower()
    relative = _RELATIVES[gpu.capability]
    for part, name in _NAMES:
        if part in plain and shipped_device(name).arch[0].startswith(f"sm_{gpu.capability[0]}{gpu.capability[1]}"):
            return Identity(name, name)
    own = re.sub(r"[^a-z0-9]+", "-", plain.removeprefix("nvidia")).strip("-")
    return Identity(own or relative, relative)


def table_text(fitted: Fitted, gpu: Gpu, *, date: str) -> str:
    """Return the text of a device table.

    Args:
        date: ISO date of the measurement.
    """
    identity = identify(gpu)
    base = shipped_device(identity.base)
    where = f"on {date}, driver {gpu.driver}"
    lines = [
        f"# Constants of {gpu.name}, measured by `nvfp4 model calibrate` {where}.",
        f"# What is not marked measured_here, or was measured on another day, is the table {base.name} of the package.",
        f"name = {_text(identity.name)}",
        f"title = {_text(f'{gpu.name}, calibrated {date}')}",
        f"arch = {_list(map(_text, base.arch))}",
        "format = 1",
        f"version = {base.version}",
        "",
    ]
    for name in UNITS:
        estimate = fitted.constants.get(name)
        if estimate is not None:
            lines += _measured(name, estimate, gpu, where)
        else:
            kept = base.constants[name]
            lines += _kept(name, kept if identity.name == identity.base else inherited(kept, base))
    lines += _matrix(fitted, base, gpu, where)
    for observed in fitted.observed:
        lines += [f"[observed.{_text(observed.what)}]", *_value(observed.estimate, observed.unit, where), ""]
    return "\n".join(lines)


def _measured(name: str, estimate: Estimate, gpu: Gpu, where: str) -> list[str]:
    return [
        f"[constant.{name}]",
        *_value(estimate, UNITS[name], where),
        'mark = "measured_here"',
        f"device = {_text(gpu.name)}",
        "",
    ]


def _value(estimate: Estimate, unit: str, where: str) -> list[str]:
    return [
        f"value = {_number(estimate.value)}",
        f"unit = {_text(unit)}",
        f"spread = {_number(estimate.spread)}",
        f"source = {_text(f'nvfp4 model calibrate {where}: ' + ', '.join(estimate.benchmarks))}",
    ]


def _kept(name: str, constant: Constant) -> list[str]:
    fields = constant.model_dump(exclude_defaults=True)
    lines = [f"{key} = {_number(value) if isinstance(value, float) else _text(value)}" for key, value in fields.items()]
    return [f"[constant.{name}]", *lines, ""]


def _matrix(fitted: Fitted, base: DeviceConstants, gpu: Gpu, where: str) -> list[str]:
    """Return the table of matrix instructions: measured rows in place of those of the same shape."""
    rows: dict[tuple[str, str, int, int, int], MatrixRow] = {}
    for (kind, place, ctas, m), entries in base.matrix.items():
        for n, interval, latency in entries:
            rows[kind, place, ctas, m, n] = (kind, place, ctas, m, n, interval, latency)
    for row in fitted.matrix:
        rows[row[:5]] = row
    source, mark, tile, latency_after = base.matrix_source, base.matrix_mark, base.matrix_tile, base.matrix_latency
    if fitted.matrix:
        kept = (
            f"; the other {len(rows) - len(fitted.matrix)} shapes: {source}" if len(rows) > len(fitted.matrix) else ""
        )
        count = f"{len(fitted.matrix)} shapes, spread up to {fitted.matrix_spread:.0%}"
        source, mark = f"nvfp4 model calibrate {where}: {count}{kept}", "measured_here"
        widest = max((row for row in fitted.matrix if row[2] == 1), key=lambda row: (row[3] * row[4], -row[5]))
        tile = max(1, round(widest[3] * widest[4] / widest[5]))
        after = sorted(max(0.0, row[6] - row[5]) for row in fitted.matrix)
        latency_after = after[len(after) // 2]
    lines = ["[matrix]", f"source = {_text(source)}", f"mark = {_text(mark)}"]
    lines += [f"device = {_text(gpu.name)}"] if fitted.matrix else []
    lines += [
        f"half_rate_below = {base.matrix_half_rate_below}",
        f"tile = {tile}",
        f"latency = {_number(latency_after)}",
        "rows = [",
    ]
    for kind, place, ctas, m, n, interval, latency in (rows[key] for key in sorted(rows)):
        values = (_text(kind), _text(place), str(ctas), str(m), str(n), _number(interval), _number(latency))
        lines.append(f"    {_list(values)},")
    return [*lines, "]", ""]


def _text(value: str) -> str:
    # A basic string of TOML has the escapes of JSON, but surrogate pairs; DEL is refused by TOML alone.
    return json.dumps(value.replace("\x7f", ""), ensure_ascii=False)


def _number(value: float) -> str:
    return repr(float(f"{value:.6g}"))


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(values)}]"

"""``nvfp4 model devices``: device tables, and each constant with its value, mark and source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.report.document import Block, Cell, Column, Document, Facts, Section, Table

if TYPE_CHECKING:
    from pytest_nvfp4.model.constants import DeviceConstants


@click.command("devices")
@click.argument("name", required=False)
@document_options(csv=True)
def devices_command(name: str | None) -> Document:
    """List the device tables, or the constants of the device NAME (or of a table, FILE.toml).

    The marks say how a constant is known: measured_here (on the named GPU), published (for this device), sibling (of a
    related device), fitted (to published times), guessed. A table of your own, which `nvfp4 model calibrate` writes,
    comes before the shipped one of its name.
    """
    from pytest_nvfp4.model.calibrated import calibrated_names
    from pytest_nvfp4.model.constants import DEVICES, ConstantsError, load_device

    try:
        if name is not None:
            return _one(load_device(name))
        return _all([load_device(known) for known in dict.fromkeys((*DEVICES, *calibrated_names()))])
    except ConstantsError as error:
        raise InputError(str(error)) from error


def _origin(device: DeviceConstants) -> str:
    return device.origin or "shipped"


def _all(devices: list[DeviceConstants]) -> Document:
    from pytest_nvfp4.model.constants import MARKS

    columns = [
        Column("device", key="device", code=True),
        Column("GPU", key="title"),
        Column("table", key="origin"),
        *(Column(mark.replace("_", " "), right=True, key=mark) for mark in MARKS),
    ]
    rows, data = list[list[Cell]](), []
    for device in devices:
        counts = Counter[str](constant.mark for constant in device.constants.values())
        rows.append([device.name, device.title, _origin(device), *(counts[mark] for mark in MARKS)])
        data.append({**_about(device), "marks": {mark: counts[mark] for mark in MARKS}})
    return Document("Device tables", [Table(columns, rows)], {"devices": data})


def _about(device: DeviceConstants) -> dict[str, Any]:
    return {
        "name": device.name,
        "title": device.title,
        "arch": list(device.arch),
        "version": device.version,
        "digest": device.digest,
        "origin": _origin(device),
    }


def _one(device: DeviceConstants) -> Document:
    from pytest_nvfp4.model.constants import describe

    columns = [
        Column("constant", key="name", code=True),
        Column("value", right=True, key="value"),
        Column("unit", key="unit"),
        Column("spread", right=True, key="spread"),
        Column("mark", key="mark"),
        Column("source", key="source"),
    ]
    constants = describe(device)
    rows = [
        [row["name"], f"{row['value']:g}", row["unit"], f"{row['spread']:.0%}", row["mark"], row["source"]]
        for row in constants
    ]
    facts = Facts([("table", _origin(device)), ("version", device.version), ("digest", device.digest)])
    blocks: list[Block] = [Section(f"{device.name}: {device.title}", [facts]), Table(columns, rows)]
    matrix = [
        {"kind": kind, "a": place, "ctas": ctas, "m": m, "n": n, "interval": interval, "latency": latency}
        for (kind, place, ctas, m), entries in device.matrix.items()
        for n, interval, latency in entries
    ]
    known = f"{len(matrix)} shapes" if matrix else "by law"
    described = [("instructions", known), ("mark", device.matrix_mark), ("source", device.matrix_source)]
    blocks.append(Section("Matrix instructions", [Facts(described)]))
    observed = {what: value.model_dump() for what, value in device.observed.items()}
    if observed:
        more = [(what, f"{value.value:.4g} {value.unit}") for what, value in device.observed.items()]
        blocks.append(Section("Measured, and not used by the model", [Facts(more)]))
    data = {
        **_about(device),
        "constants": constants,
        "matrix": {"mark": device.matrix_mark, "source": device.matrix_source, "rows": matrix},
        "observed": observed,
    }
    return Document(device.name, blocks, data)

"""``nvfp4 model calibrate``: measure the constants of a GPU, and write its device table."""

from __future__ import annotations

import datetime
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options, remote_options, timeout_option
from pytest_nvfp4.cli.used_remote import used_remote
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.report.document import Column, Document, Facts, Items, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_nvfp4.device.calibrate import Calibration, Runner
    from pytest_nvfp4.model.constants import DeviceConstants

_SLACK_S = 60.0
"""Seconds between the process's own deadline and the moment when a remote ends its container."""


@click.command("calibrate")
@click.option("--remote", "where", metavar="REMOTE", help="Measure the GPU of a remote: modal, ssh:HOST, ...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the table to FILE.  [default: the user's data folder, where `--device` finds it by name]",
)
@timeout_option(180.0, help_text="Time limit of the micro-benchmarks in seconds; they are planned for one minute.")
@remote_options("gpu", "gpu_capability", "timeout_s", "max_cost", "gpu_price", "deployed_app")
@document_options()
def calibrate_command(*, where: str | None, out: Path | None, timeout: float, remote: RemoteOptions) -> Document:
    """Measure the constants of a GPU with micro-benchmarks, and write its device table (TOML).

    The GPU must be idle: one that other processes use, or whose clocks are throttled, is refused. What cannot be
    measured, or varies too much, stays as in the shipped table, with its mark and source.
    """
    from pytest_nvfp4.device.calibrate import CalibrationError, calibrate, on_this_machine
    from pytest_nvfp4.device.remote.base import RemoteError
    from pytest_nvfp4.model.calibrate.table import identify, table_text
    from pytest_nvfp4.model.calibrated import calibrated_path
    from pytest_nvfp4.model.constants import ConstantsError, read_device, shipped_device

    place = where or "this machine"
    try:
        if where is None:
            with output.working("measuring the GPU of this machine"):
                found = calibrate(on_this_machine(), deadline_s=timeout)
        else:
            with _remote_runner(where, replace(remote, longest_s=timeout + _SLACK_S)) as run:
                found = calibrate(run, deadline_s=timeout)
    except CalibrationError as error:
        raise InputError(f"{place}: {error}") from error
    except RemoteError as error:
        raise InputError(f"{place}: {error}") from error
    identity = identify(found.gpu)
    path = out or calibrated_path(identity.name)
    text = table_text(found.fitted, found.gpu, date=datetime.datetime.now(datetime.UTC).date().isoformat())
    try:
        device = read_device(text, str(path))
    except ConstantsError as error:
        raise InputError(f"{place}: what was measured makes no table: {error}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent} cannot be made: {error.strerror}") from error
    output.write_file(path, text)
    return _document(found, device, shipped_device(identity.base), path)


@contextmanager
def _remote_runner(name: str, options: RemoteOptions) -> Iterator[Runner]:
    """Yield the runner of a remote, and stop the remote afterwards. Raises RemoteError and InputError."""
    from pytest_nvfp4.device.calibrate import on_remote
    from pytest_nvfp4.device.remote.base import ProgramRemote

    with used_remote(name, options) as chosen:
        if not isinstance(chosen, ProgramRemote):
            raise InputError(f"{name} runs kernels, but no programs; use modal or ssh:HOST")
        with output.working(f"measuring the GPU of {name}"):
            yield on_remote(chosen)


def _document(found: Calibration, device: DeviceConstants, base: DeviceConstants, path: Path) -> Document:
    fitted = found.fitted
    columns = [
        Column("constant", code=True),
        Column("measured", right=True),
        Column("spread", right=True),
        Column("unit"),
        Column(f"shipped ({base.name})", right=True),
        Column("mark"),
    ]
    rows = []
    for name, estimate in fitted.constants.items():
        shipped = base.constants[name]
        value, spread = f"{estimate.value:.4g}", f"{estimate.spread:.1%}"
        rows.append([name, value, spread, shipped.unit, f"{shipped.value:.4g}", shipped.mark])
    facts = Facts(
        [
            ("GPU", found.gpu.name),
            ("driver", found.gpu.driver),
            ("table", str(path)),
            ("measured", f"{len(fitted.constants)} constants, {len(fitted.matrix)} shapes of matrix instructions"),
            ("digest", device.digest),
        ]
    )
    sections = [Section(f"{device.name}: {device.title}", [facts]), Section("Constants", [Table(columns, rows)])]
    observed = [
        [item.what, f"{item.estimate.value:.4g}", f"{item.estimate.spread:.1%}", item.unit] for item in fitted.observed
    ]
    if observed:
        head = [Column("measured besides"), Column("value", right=True), Column("spread", right=True), Column("unit")]
        sections.append(Section("Not used by the model", [Table(head, observed)]))
    missing = [f"{name}: {reason}" for name, reason in fitted.missing.items()]
    if missing:
        sections.append(Section("Not measured, and kept as shipped", [Items(missing)]))
    data = {
        "gpu": found.gpu.model_dump(mode="json"),
        "device": device.name,
        "digest": device.digest,
        "file": str(path),
        "constants": {
            name: {"value": item.value, "spread": item.spread, "benchmarks": list(item.benchmarks)}
            for name, item in fitted.constants.items()
        },
        "matrix": [list(row) for row in fitted.matrix],
        "observed": {
            item.what: {"value": item.estimate.value, "spread": item.estimate.spread, "unit": item.unit}
            for item in fitted.observed
        },
        "missing": fitted.missing,
    }
    return Document(device.name, sections, data)

"""``nvfp4 remote smoke``: try a remote with a real account, and write what was seen to one file."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4 import __version__
from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.report.document import Block, Column, Document, Table
from pytest_nvfp4.text import json_text

if TYPE_CHECKING:
    from pytest_nvfp4.device.remote.base import Remote
    from pytest_nvfp4.device.remote.options import RemoteOptions
    from pytest_nvfp4.device.remote.smoke import Smoke, StepRecord

BUDGET_USD = 2.0
_COLUMNS = (Column("step"), Column("outcome"), Column("seconds"), Column("error", share=3))


def try_out(
    remote: Remote, name: str, options: RemoteOptions, *, budget: float, file: Path, agreed: bool, dry: bool
) -> Document:
    """Say what will be done and spent, do it if the user agrees, and write the report.

    Raises:
        InputError: The user does not agree, no price is known, or the file cannot be written.
    """
    from pytest_nvfp4.device.remote.registry import remote as make
    from pytest_nvfp4.device.remote.smoke import Smoke

    smoke = Smoke(remote, options, budget=budget, without=lambda other: make(name, other))
    plan = _plan(smoke, name, remote, budget=budget)
    if dry:
        return Document(f"Try-out of {name}", [*plan], {"remote": name, "steps": [step.name for step in smoke.steps]})
    for line in plan:
        output.note(line)
    if remote.cost().usd_per_hour is None:
        raise InputError(f"{name}: no price is known, so no budget can hold: give one with --gpu-price USD")
    if not agreed and not click.confirm("nvfp4: begin?", err=True):
        raise InputError(f"{name}: nothing was done; --yes begins without a question")

    def write() -> dict[str, Any]:
        data = _report(name, remote, smoke.records, budget=budget)
        output.write_file(file, f"{json_text(data)}\n")
        return data

    write()  # a file that cannot be written is noticed before anything is paid for
    try:
        records = smoke.run(lambda step: output.note(f"{step.name}: {step.what} ..."))
    finally:
        data = write()  # after Ctrl-C too: what was seen is paid for
    rows = [(one.name, one.outcome, f"{one.seconds:.1f}", (one.error or {}).get("problem")) for one in records]
    blocks: list[Block] = [Table(_COLUMNS, rows), f"wrote {file}: it holds no secret; send it back as it is"]
    return Document(f"Try-out of {name}", blocks, data, all(one.outcome == "done" for one in records))


def _plan(smoke: Smoke, name: str, remote: Remote, *, budget: float) -> list[str]:
    usd = smoke.estimate_usd()
    price = "no price is known" if usd is None else f"about ${usd:.2f} in all"
    lines = [f"{name}: {remote.describe()}"]
    lines += [f"  {step.name}: {step.what} (about {step.seconds:.0f} s)" for step in smoke.steps]
    lines.append(f"{price} ({remote.cost().note}); no step begins that would bring the estimate above ${budget:.2f}")
    return lines


def _report(name: str, remote: Remote, records: list[StepRecord], *, budget: float) -> dict[str, Any]:
    cost = remote.cost()
    now = datetime.datetime.now(datetime.UTC)
    return {
        "format": "nvfp4-smoke 1",
        "remote": name.partition(":")[0],
        "what": remote.describe() if name == "modal" else "",
        "package": __version__,
        "python": platform.python_version(),
        "written": now.isoformat(timespec="seconds"),
        "budget_usd": budget,
        "estimated": {"seconds": cost.seconds, "usd": cost.usd, "usd_per_hour": cost.usd_per_hour, "note": cost.note},
        "billed_usd": None,
        "please": "fill in billed_usd from the provider's page, for the minutes before `written`",
        "steps": [record.to_json() for record in records],
    }

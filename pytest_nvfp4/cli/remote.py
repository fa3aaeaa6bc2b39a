"""``nvfp4 remote``: status, start, stop and cost of a remote."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import Function, document_options, remote_options
from pytest_nvfp4.cli.smoke import BUDGET_USD, try_out
from pytest_nvfp4.cli.used_remote import GRACE_S, note_end
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.end_signals import clean_ends
from pytest_nvfp4.report.document import Document, Facts, Section

if TYPE_CHECKING:
    from pytest_nvfp4.device.remote.base import Cost, Remote


@click.group("remote")
def remote_command() -> None:
    """Show the status or cost of REMOTE, such as modal or ssh:HOST, start it or stop it."""


def _of_remote(*more_options: str) -> Callable[[Callable[..., Document]], Function]:
    """Add the argument and options of a remote to a subcommand, which receives the remote and its name."""

    def decorate(function: Callable[..., Document]) -> Function:
        @wraps(function)
        def call(name: str, remote: RemoteOptions, **more: Any) -> Document:
            from pytest_nvfp4.device.remote.base import RemoteError, left_on
            from pytest_nvfp4.device.remote.registry import remote as make

            try:
                chosen = make(name, remote)
                with clean_ends(lambda: left_on(chosen), within_s=GRACE_S):
                    return function(chosen, name, **more)
            except RemoteError as error:
                raise InputError(f"{name}: {error}") from error

        options = remote_options(
            "gpu", "gpu_capability", "gpu_price", "cpus", "memory_gib", "deployed_app", *more_options
        )
        return click.argument("name", metavar="REMOTE")(options(document_options()(call)))

    return decorate


@remote_command.command("status")
@_of_remote()
def status_command(remote: Remote, name: str) -> Document:
    """Show whether REMOTE can be reached, and what it runs. Exit code 1 if it cannot be reached."""
    try:
        with output.working(f"contacting {name}"):
            status = remote.status()
    finally:
        remote.stop()
    title = f"{name}: {'' if status.reachable else 'not reachable: '}{status.summary}"
    data = {
        "remote": name,
        "reachable": status.reachable,
        "words": status.summary,
        "containers": status.containers,
        "details": dict(status.details),
    }
    return Document(name, [Section(title, [Facts(list(status.details.items()))])], data, status.reachable)


@remote_command.command("warm")
@_of_remote("timeout_s", "containers")
def warm_command(remote: Remote, name: str) -> Document:
    """Start a machine of REMOTE that the next runs with the same options use, and show the time and cost of the start.

    The machine costs money until it has been idle for a while, or until `nvfp4 remote stop`. For a remote that keeps no
    machine between two commands (ssh), this only checks the connection.
    """
    from pytest_nvfp4.device.remote.base import left_on

    start = time.monotonic()
    try:
        with output.working(f"waiting for {name}"):
            remote.warm()
        seconds = time.monotonic() - start
    except BaseException:
        remote.stop()
        note_end(name, remote)
        raise
    remote.stop()
    cost, left = remote.cost(), left_on(remote)
    idle = f", {cost.idle_s:.0f} s of it idle after this" if cost.idle_s else ""
    lines = [f"{name}: ready after {seconds:.1f} s ({cost}{idle})", *filter(None, [left])]
    data = {"remote": name, "ready": True, "seconds": round(seconds, 3), "cost": _cost(cost), "left": left}
    return Document(name, lines, data)


@remote_command.command("stop")
@_of_remote()
def stop_command(remote: Remote, name: str) -> Document:
    """Stop what runs of this tool on REMOTE, of other sessions too: apps and containers, found by their names.

    An app that was deployed stays deployed, without containers; --deployed-app names another one than the usual. Exit
    code 2 if something still runs, or if REMOTE cannot be asked.
    """
    end_all = getattr(remote, "end_all", None)
    if end_all is None:
        raise InputError(
            f"{name}: nothing was stopped: this remote cannot list what other sessions left there; its own page or "
            "command can"
        )
    try:
        with output.working(f"stopping what runs on {name}"):
            ended = list(end_all())
    finally:
        remote.stop()
    lines = [f"{name}: stopped {one}" for one in ended] or [f"{name}: nothing of this tool runs there"]
    return Document(name, lines, {"remote": name, "stopped": True, "ended": ended})


@remote_command.command("cost")
@click.option("--seconds", type=click.FloatRange(min=0), default=3600.0, show_default=True, help="Time to estimate.")
@_of_remote()
def cost_command(remote: Remote, name: str, *, seconds: float) -> Document:
    """Estimate the cost of REMOTE for a time, from known prices. Contacts nothing."""
    cost = replace(remote.cost(), seconds=seconds)
    price = "no price is known" if cost.usd_per_hour is None else f"${cost.usd_per_hour:.2f} an hour; {cost}"
    lines = [text for text in (price, cost.note) if text]
    data = {"remote": name, "what": remote.describe(), **_cost(cost)}
    return Document(name, [Section(remote.describe(), lines)], data)


@remote_command.command("smoke")
@click.argument("name", metavar="REMOTE")
@remote_options("gpu", "gpu_capability", "gpu_price", "timeout_s", "cpus", "memory_gib")
@click.option("--profilers", is_flag=True, help="Use the image with nsys and ncu.")
@click.option("--cpu", "simulates", is_flag=True, help="Rent no GPU: containers that simulate.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True, max=100),
    default=BUDGET_USD,
    show_default=True,
    help="US dollars that it may cost, by the estimate.",
)
@click.option("--yes", "agreed", is_flag=True, help="Begin without a question.")
@click.option("--dry-run", "dry", is_flag=True, help="Show what it would do and spend, and contact nothing.")
@click.option(
    "--report",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("nvfp4-smoke.json"),
    show_default=True,
    metavar="FILE",
    help="File to write.",
)
@document_options()
def smoke_command(
    name: str,
    remote: RemoteOptions,
    *,
    profilers: bool,
    simulates: bool,
    budget: float,
    agreed: bool,
    dry: bool,
    file: Path,
) -> Document:
    """Try REMOTE with a real account: what only that can show. Says first what it will do and spend, and asks.

    The steps are image and capacity, times of warm jobs, versions, network and credentials as a program there sees
    them, silence, ends and errors with their texts, and what is left. The report is one file without secrets, to be
    sent back. Exit code 1 if a step failed or was left out.
    """
    from pytest_nvfp4.device.remote.base import RemoteError, left_on
    from pytest_nvfp4.device.remote.registry import remote as make

    options = replace(remote, profilers=profilers, simulates=simulates, max_cost=budget)
    try:
        chosen = make(name, options)
        with clean_ends(lambda: left_on(chosen), within_s=GRACE_S):
            return try_out(chosen, name, options, budget=budget, file=file, agreed=agreed, dry=dry)
    except RemoteError as error:
        raise InputError(f"{name}: {error}") from error


def _cost(cost: Cost) -> dict[str, Any]:
    return {"seconds": round(cost.seconds, 3), "usd": cost.usd, "usd_per_hour": cost.usd_per_hour, "note": cost.note}

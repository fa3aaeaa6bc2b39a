"""``nvfp4 remote``: status, start, stop and cost of a remote."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import Function, document_options, remote_options
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.report.document import Document, Facts, Section

if TYPE_CHECKING:
    from pytest_nvfp4.device.remote.base import Cost, Remote


@click.group("remote")
def remote_command() -> None:
    """Show the status or cost of REMOTE, such as modal or ssh:HOST, start it or stop it."""


def _of_remote(function: Callable[..., Document]) -> Function:
    """Add the argument and options of a remote to a subcommand, which receives the remote and its name."""

    @wraps(function)
    def call(name: str, remote: RemoteOptions, **more: Any) -> Document:
        from pytest_nvfp4.device.remote.base import RemoteError
        from pytest_nvfp4.device.remote.registry import remote as make

        try:
            return function(make(name, remote), name, **more)
        except RemoteError as error:
            raise InputError(f"{name}: {error}") from error

    return click.argument("name", metavar="REMOTE")(
        remote_options("gpu", "gpu_price", "deployed_app")(document_options()(call))
    )


@remote_command.command("status")
@_of_remote
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
@_of_remote
def warm_command(remote: Remote, name: str) -> Document:
    """Start a machine of REMOTE, and show the time and cost of the start.

    A machine that keeps running after this command costs money until its idle timeout or `stop`. For a remote that
    keeps no machine (ssh), this only checks the connection.
    """
    start = time.monotonic()
    with output.working(f"waiting for {name}"):
        remote.warm()
    seconds, cost = time.monotonic() - start, remote.cost()
    data = {"remote": name, "ready": True, "seconds": round(seconds, 3), "cost": _cost(cost)}
    return Document(name, [f"{name}: ready after {seconds:.1f} s ({cost})"], data)


@remote_command.command("stop")
@_of_remote
def stop_command(remote: Remote, name: str) -> Document:
    """Stop the machines of REMOTE that this user holds and this command can reach."""
    with output.working(f"stopping {name}"):
        remote.stop()
    data = {"remote": name, "stopped": True, "cost": _cost(remote.cost())}
    return Document(name, [f"{name}: stopped"], data)


@remote_command.command("cost")
@click.option("--seconds", type=click.FloatRange(min=0), default=3600.0, show_default=True, help="Time to estimate.")
@_of_remote
def cost_command(remote: Remote, name: str, *, seconds: float) -> Document:
    """Estimate the cost of REMOTE for a time, from known prices. Contacts nothing."""
    from dataclasses import replace

    cost = replace(remote.cost(), seconds=seconds)
    price = "no price is known" if cost.usd_per_hour is None else f"${cost.usd_per_hour:.2f} an hour; {cost}"
    lines = [text for text in (price, cost.note) if text]
    data = {"remote": name, "what": remote.describe(), **_cost(cost)}
    return Document(name, [Section(remote.describe(), lines)], data)


def _cost(cost: Cost) -> dict[str, Any]:
    return {"seconds": round(cost.seconds, 3), "usd": cost.usd, "usd_per_hour": cost.usd_per_hour, "note": cost.note}

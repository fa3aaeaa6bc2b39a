"""``nvfp4 remote``: ask a remote how it stands, make it ready, stop it, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import json_option

if TYPE_CHECKING:
    from pytest_nvfp4.device.remote.base import Cost, Remote


@click.group("remote")
def remote_command() -> None:
    """Ask about REMOTE, such as modal or ssh:HOST, as --nvfp4-remote names it."""


def _of_remote(function: Callable[..., None]) -> Callable[..., None]:
    """Give a subcommand its remote; what it cannot do becomes one line of error."""

    @wraps(function)
    def call(remote: str, gpu: str, deployed_app: str | None, **more: Any) -> None:
        from pytest_nvfp4.device.remote.base import RemoteError, RemoteOptions
        from pytest_nvfp4.device.remote.registry import remote as make

        try:
            function(make(remote, RemoteOptions(gpu=gpu, deployed_app=deployed_app)), remote, **more)
        except RemoteError as error:
            raise InputError(f"{remote}: {error}") from error

    for option in (
        click.option("--deployed-app", metavar="NAME", help="The app that is deployed (modal)."),
        click.option("--gpu", default="B200", show_default=True, metavar="GPU", help="The remote's GPU."),
        click.argument("remote"),
    ):
        call = option(call)
    return call


@remote_command.command("status")
@json_option
@_of_remote
def status_command(remote: Remote, name: str, *, as_json: bool) -> None:
    """Ask REMOTE what is there. Exits with 1 where it cannot be reached."""
    try:
        with output.working(f"asking {name}"):
            status = remote.status()
    finally:
        remote.stop()
    if as_json:
        output.write_json(
            {
                "remote": name,
                "reachable": status.reachable,
                "words": status.words,
                "containers": status.containers,
                "details": dict(status.details),
            }
        )
    else:
        output.write(f"{name}: {'' if status.reachable else 'not reachable: '}{status.words}")
        for key, value in status.details.items():
            output.write(f"  {key}  {value}")
    if not status.reachable:
        raise click.exceptions.Exit(Exit.FAILED)


@remote_command.command("warm")
@json_option
@_of_remote
def warm_command(remote: Remote, name: str, *, as_json: bool) -> None:
    """Make a machine of REMOTE ready, and say how long that took and what it cost.

    What a remote keeps running after this command costs until it falls asleep by itself, or until `stop`. A remote
    that keeps nothing (ssh) is tried only.
    """
    start = time.monotonic()
    with output.working(f"waiting for {name}"):
        remote.warm()
    seconds, cost = time.monotonic() - start, remote.cost()
    if as_json:
        output.write_json({"remote": name, "ready": True, "seconds": round(seconds, 3), "cost": _cost(cost)})
    else:
        output.write(f"{name}: ready after {seconds:.1f} s ({cost})")


@remote_command.command("stop")
@json_option
@_of_remote
def stop_command(remote: Remote, name: str, *, as_json: bool) -> None:
    """Give back what REMOTE still holds for this user and this command can reach."""
    with output.working(f"stopping {name}"):
        remote.stop()
    if as_json:
        output.write_json({"remote": name, "stopped": True, "cost": _cost(remote.cost())})
    else:
        output.write(f"{name}: stopped")


@remote_command.command("cost")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=3600.0, show_default=True, help="For how long to say the cost."
)
@json_option
@_of_remote
def cost_command(remote: Remote, name: str, *, seconds: float, as_json: bool) -> None:
    """What a time of REMOTE costs, as far as that is known here. Contacts nothing."""
    from dataclasses import replace

    cost = replace(remote.cost(), seconds=seconds)
    if as_json:
        output.write_json({"remote": name, "what": remote.describe(), **_cost(cost)})
        return
    price = "no price is known" if cost.usd_per_hour is None else f"${cost.usd_per_hour:.2f} an hour; {cost}"
    output.write(f"{remote.describe()}\n  {price}" + (f"\n  {cost.note}" if cost.note else ""))


def _cost(cost: Cost) -> dict[str, Any]:
    return {"seconds": round(cost.seconds, 3), "usd": cost.usd, "usd_per_hour": cost.usd_per_hour, "note": cost.note}

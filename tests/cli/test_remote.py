"""``nvfp4 remote``: the functions of a remote, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.helpers import Result
from tests.device.remote.ssh.conftest import Sshd, sshd

__all__ = ["sshd"]

Cli = Callable[..., Result]


def test_a_machine_that_is_there(cli: Cli, sshd: Sshd) -> None:
    spec = f"ssh:{sshd.target(price=3.6)}"
    done = cli("remote", "status", spec, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["reachable"] is True
    assert said["details"]["torch"]
    done = cli("remote", "warm", spec)
    assert (done.code, "ready after" in done.out) == (0, True), done.err
    done = cli("remote", "stop", spec, "--json")
    assert json.loads(done.out)["stopped"] is True


def test_a_machine_that_is_not(cli: Cli, sshd: Sshd) -> None:
    done = cli("remote", "status", f"ssh:{sshd.target('closed')}")
    assert done.code == 1
    assert "not reachable: ssh to closed failed" in done.out
    done = cli("remote", "warm", f"ssh:{sshd.target('closed')}")
    assert done.code == 2
    assert "see that sshd runs there" in done.err


def test_costs_need_no_contact(cli: Cli) -> None:
    done = cli("remote", "cost", "ssh:me@no-such-host.invalid?price=3.6", "--seconds", "1800")
    assert done.code == 0
    assert "$3.60 an hour; 1800 s, about $1.80" in done.out
    done = cli("remote", "cost", "ssh:no-such-host.invalid", "--json")
    assert json.loads(done.out)["usd_per_hour"] is None
    assert "no price is known" in cli("remote", "cost", "ssh:no-such-host.invalid").out


@pytest.mark.parametrize("verb", ["status", "warm", "stop", "cost"])
def test_names_that_are_none(cli: Cli, verb: str) -> None:
    done = cli("remote", verb, "mdal")
    assert done.code == 2
    assert "did you mean 'modal'?" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["remote", "cost", "modal", "--gpu", "B900"], "give it with --gpu-capability, such as 10.0"),
        (["exec", "--device", "modal", "--gpu", "B900", "--gpu-price", "1", "1"], "give it with --gpu-capability"),
        (["exec", "--device", "ssh:box", "--remote-cpus", "2", "1"], "omit --remote-cpus and --remote-memory"),
        (["exec", "--device", "modal", "--remote-memory", "0", "1"], "--remote-memory 0 must be 1 to 336 GiB"),
    ],
)
def test_options_have_the_names_of_pytest_s(cli: Cli, arguments: list[str], said: str) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert said in done.err
    assert "--nvfp4-" not in done.err

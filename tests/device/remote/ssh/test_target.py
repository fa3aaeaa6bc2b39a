"""What ``ssh:...`` says, and what ssh's own words mean."""

from __future__ import annotations

import pytest

from pytest_nvfp4.device.remote.base import RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.ssh import SshRemote, SshTarget
from pytest_nvfp4.device.remote.ssh_errors import explain


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("box", SshTarget("box")),
        ("me@box", SshTarget("me@box")),
        ("me@box:2222", SshTarget("me@box", port=2222)),
        ("[2001:db8::1]:22", SshTarget("2001:db8::1", port=22)),
        ("//me@box", SshTarget("me@box")),
        ("box?python=/opt/a b/python&folder=/data/x+y", SshTarget("box", python="/opt/a b/python", folder="/data/x+y")),
        ("box?backend=sim&price=3.5&config=~/c%26d", SshTarget("box", backend="sim", price=3.5, config="~/c&d")),
    ],
)
def test_targets(text: str, target: SshTarget) -> None:
    assert SshTarget.parse(text) == target


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no host"),
        ("-oProxyCommand=touch x", "names no host"),
        ("me@-oProxyCommand=x", "starts like an option"),
        ("a b", "names no host"),
        ("box:port", "names no host"),
        ("box?pyton=x", "unknown setting 'pyton'"),
        ("box?backend=gpu", "one of cuda, sim, host"),
        ("box?price=cheap", "is not a number"),
    ],
)
def test_targets_that_are_none(text: str, said: str) -> None:
    with pytest.raises(RemoteError, match=said) as raised:
        SshTarget.parse(text)
    assert raised.value.kind == "setup"


def test_the_command_asks_for_nothing_and_forwards_nothing() -> None:
    command = SshTarget.parse("me@box:2222?python=~/venv/bin/python").command()
    for option in ("BatchMode=yes", "ForwardAgent=no", "ClearAllForwardings=yes", "SendEnv=-*"):
        assert option in command
    assert command[command.index("--") + 1] == "me@box"
    assert command[-1].startswith("exec ~/venv/bin/python -c ")
    assert SshTarget.parse("box?python=/a b/$(x)").command()[-1].startswith("exec '/a b/$(x)' -c ")


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(RemoteError, match="no deployed apps"):
        SshRemote(RemoteOptions(target="box", deployed_app="x"))


@pytest.mark.parametrize(
    ("status", "errors", "trouble", "do"),
    [
        (255, "ssh: Could not resolve hostname box: Name or service not known", "network", "ssh/config"),
        (255, "ssh: connect to host box port 22: Connection refused", "network", "sshd runs there"),
        (255, "ssh: connect to host box port 22: Connection timed out", "network", "ProxyJump"),
        (
            255,
            "@@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "login",
            "-R",
        ),
        (255, "Host key verification failed.", "login", "connect once by hand"),
        (255, "me@box: Permission denied (publickey).", "login", "ssh-add"),
        (255, "command-line: line 0: Bad configuration option: x", "setup", "config"),
        (255, "client_loop: send disconnect: Broken pipe", "network", "again"),
        (255, "something new", "network", "ssh box true"),
        (127, "sh: 1: exec: python9: not found", "setup", "?python="),
        (126, "sh: 1: python: Permission denied", "setup", "?python="),
        (137, "", "lost", "memory"),
        (3, "odd", "remote", ""),
    ],
)
def test_the_words_of_ssh(status: int, errors: str, trouble: str, do: str) -> None:
    error = explain("box", "python9", status, errors)
    assert error.kind == trouble
    assert do in error.remedy
    assert "box" in error.problem

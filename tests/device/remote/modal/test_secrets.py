"""No secret of the user's environment leaves this machine or is written on it, whatever goes wrong and is logged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from grpclib import Status

from ..loopback import Fault, Loopback
from .user import PLANTED, SMALL, User

NOSY = """
import os
import sys

told = str(dict(os.environ))
print("at import:", told)
print("at import:", told, file=sys.stderr)


def custom_kernel(data):
    print(told, flush=True)
    if "nvfp4-tmp-job-" in os.getcwd():
        raise RuntimeError(f"it failed with {told}")
    return [c for _, _, c in data[0]]
"""
"""A kernel that tells every variable of its process, here (where it is traced) and there."""


@pytest.fixture(scope="module")
def host_server() -> Iterator[Loopback]:
    with Loopback(backend="host") as server:
        yield server


@pytest.fixture
def user(host_server: Loopback, tmp_path: Path) -> User:
    host_server.forget()
    made = User(host_server, tmp_path)
    made.write("kernel.py", NOSY)
    return made


LOUD = ("-vv", "-rA", "--tb=long", "-o", "log_cli=true", "--log-level=DEBUG", "--showlocals", "--full-trace")
REPORTS = ("--junitxml=report.xml", "--nvfp4-html=report.html", "--nvfp4-md=report.md")
DEBUG = {"MODAL_LOGLEVEL": "DEBUG", "MODAL_TRACEBACK": "1", "PYTHONFAULTHANDLER": "1"}


def check(user: User, *args: str, **more: str) -> str:
    return user.run("kernel.py", "-k", "verify", *SMALL, *LOUD, *REPORTS, *args, **DEBUG, **more)


@pytest.mark.slow
def test_a_kernel_that_tells_its_environment(user: User) -> None:
    said = check(user)
    assert "2 failed" in said, said
    assert "it failed with" in said, "it did run there"
    user.assert_no_secret(said)
    assert all((user.folder / f"report.{kind}").stat().st_size for kind in ("xml", "html", "md"))
    again = check(user, "--nvfp4-resume")
    assert "2 failed" in again
    user.assert_no_secret(again)


@pytest.mark.slow
def test_refusals_that_repeat_what_they_were_sent(user: User) -> None:
    """A server that puts the token into its message, and errors of every step, with all logs on."""
    secret = user.server.environ()["MODAL_TOKEN_SECRET"]
    for rpc in ("AppCreate", "FunctionMap", "FunctionGetOutputs"):
        user.server.forget()
        fault = Fault(rpc, "error", status=Status.INVALID_ARGUMENT, message=f"bad request of {secret}")
        user.server.faults.add(fault)
        said = check(user)
        assert "2 failed" in said, said
        assert "[hidden]" in said
        user.assert_no_secret(said, but=["requests"])  # the client reports to Modal why an app ended, in Modal's words
    user.server.forget()
    said = check(user, MODAL_TOKEN_SECRET="as-another-secret-5d1e")
    assert "Modal refused the token" in said
    assert "as-another-secret-5d1e" not in said
    for place, data in user.places(said).items():
        assert b"as-another-secret-5d1e" not in data, place


@pytest.mark.slow
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(user: User) -> None:
    said = check(user, MODAL_DISABLE_API_PROXY="0")
    assert "2 failed" in said, said
    assert "http://[hidden]@127.0.0.1:9" in said
    assert user.server.calls == []
    assert not [place for place, data in user.places(said).items() if b"planted-" in data]


@pytest.mark.slow
def test_the_search_finds_what_is_sent(user: User) -> None:
    """The negative control: a kernel with a secret in its own text is sent as it is."""
    user.write("kernel.py", f"# {PLANTED['HF_TOKEN']}\n{NOSY}")
    said = check(user)
    with pytest.raises(AssertionError, match="HF_TOKEN in"):
        user.assert_no_secret(said)

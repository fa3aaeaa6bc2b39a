"""What is looked at before Modal is asked anything: the token, the proxy, the server; and that no password is told."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal import login
from pytest_nvfp4.device.remote.modal.errors import clean, without_password
from pytest_nvfp4.device.remote.modal.login import Login, check_reachable
from tests.waiting import LONGEST_S

PASSWORD = "planted-in-a-proxy-5f21"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("MODAL_DISABLE_API_PROXY", raising=False)


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(4)
        yield one.getsockname()[1]


@pytest.fixture
def with_socks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, *more: Any) -> Any:
        return object() if name == "python_socks" else real(name, *more)

    monkeypatch.setattr(login.importlib.util, "find_spec", find)


def failed(server: str) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        check_reachable(server)
    assert PASSWORD not in str(caught.value)
    return caught.value


@pytest.mark.usefixtures("with_socks")
def test_a_proxy_that_is_not_there(monkeypatch: pytest.MonkeyPatch, closed_port: int, open_port: int) -> None:
    """It is the proxy that is tried: names may not resolve here, and the server may not be reachable but by it."""
    monkeypatch.setenv("https_proxy", f"http://user:{PASSWORD}@127.0.0.1:{closed_port}")
    error = failed("https://api.invalid")
    assert error.kind == "network"
    assert f"the proxy http://[hidden]@127.0.0.1:{closed_port} cannot be reached" in str(error)
    monkeypatch.setenv("https_proxy", f"http://user:{PASSWORD}@127.0.0.1:{open_port}")
    check_reachable("https://api.invalid")


def test_a_proxy_that_the_client_cannot_use(monkeypatch: pytest.MonkeyPatch, open_port: int) -> None:
    monkeypatch.setattr(login.importlib.util, "find_spec", lambda name: None if name == "python_socks" else object())
    monkeypatch.setenv("ALL_PROXY", f"socks5://user:{PASSWORD}@127.0.0.1:{open_port}")
    error = failed("https://api.invalid")
    assert error.kind == "setup"
    assert "api-proxy-support" in str(error)


@pytest.mark.usefixtures("with_socks")
@pytest.mark.parametrize(("name", "value"), [("NO_PROXY", "127.0.0.1"), ("MODAL_DISABLE_API_PROXY", "1")])
def test_a_proxy_that_is_not_for_this_server(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, open_port: int, name: str, value: str
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port}")
    failed(f"http://127.0.0.1:{open_port}")
    monkeypatch.setenv(name, value)
    check_reachable(f"http://127.0.0.1:{open_port}")


def test_a_second_server_is_tried_where_the_first_is_not_there(closed_port: int, open_port: int) -> None:
    check_reachable(f"http://127.0.0.1:{closed_port},http://127.0.0.1:{open_port}")
    assert failed(f"http://127.0.0.1:{closed_port},http://127.0.0.1:port").kind == "network"


def test_passwords_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:pass%2Fword@proxy:3128")
    secrets = Login("ak-1", "as-1", "https://api").secrets
    told = clean("as-1 of ak-1 by http://user:pass%2Fword@proxy:3128, that is pass/word, at 10 o'clock", secrets)
    assert told == "[hidden] of [hidden] by http://[hidden]@proxy:3128, that is [hidden], at 10 o'clock"
    assert without_password("https://host/path@x, me@host") == "https://host/path@x, me@host"


@pytest.mark.parametrize(
    "line", ["token_secret = 12as-planted-7c", pytest.param("as-planted-7c", marks=pytest.mark.slow)]
)
def test_a_damaged_file_of_tokens_is_named_and_not_told(tmp_path: Path, line: str) -> None:
    """The client's own message repeats the value that it cannot read."""
    file = tmp_path / "modal.toml"
    file.write_text(f'[default]\ntoken_id = "ak-1"\n{line}\n')
    code = (
        "from pytest_nvfp4.device.remote.modal.login import find_login\n"
        "try:\n    find_login()\nexcept Exception as error:\n    print(error)\n"
        "    import traceback; traceback.print_exc()"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, "MODAL_CONFIG_PATH": str(file)},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert str(file) in done.stdout
    assert "correct that file" in done.stdout
    assert "as-planted-7c" not in done.stdout + done.stderr

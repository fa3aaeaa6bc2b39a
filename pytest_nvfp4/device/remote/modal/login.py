"""Before anything is asked of Modal: is its client here, is there a token, can its server be reached at all?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal.errors import INSTALL, LOGIN, without_password

_LEAST = (1, 5)
_MOST = (2, 0)
_PREFLIGHT_S = 2.0
_OAUTH = ("oauth_refresh_token", "oauth_client_id")
_QUOTED = re.compile(r"'[^']*'")
_SHORT = 4
"""A password of fewer characters is hidden in addresses only: it would be found in words that are none."""
_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are to Modal. Its text form shows no secret."""

    token_id: str = field(repr=False)
    token_secret: str = field(repr=False)
    server: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown: the token, and passwords of proxies."""
        proxies = (urllib.parse.urlsplit(proxy).password or "" for proxy in urllib.request.getproxies().values())
        passwords = [text for one in proxies if len(one) >= _SHORT for text in (one, urllib.parse.unquote(one))]
        return (self.token_secret, self.token_id, *passwords)


def check_client() -> str:
    """The version of Modal's client. Raises RemoteError where it is missing or of a version not known to work."""
    try:
        version = importlib.metadata.version("modal")
    except importlib.metadata.PackageNotFoundError:
        raise RemoteError("setup", "Modal's client is not installed", INSTALL) from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not _LEAST <= numbers < _MOST:
        raise RemoteError("version", f"version {version} of Modal's client is not one this package works with", INSTALL)
    return version


def find_login() -> Login:
    """The token and the server, as Modal's client finds them. Contacts nothing. Raises RemoteError."""
    check_client()
    try:
        from modal.config import config
    except Exception as error:  # a damaged configuration file, or a damaged installation
        do = f"mend that file, or {LOGIN}" if type(error).__name__ == "InvalidError" else INSTALL
        raise RemoteError("setup", f"Modal's client cannot be loaded: {_without_values(error)}", do) from None
    token_id, token_secret = config.get("token_id"), config.get("token_secret")
    if not (token_id and token_secret) and any(_setting(config, name) for name in _OAUTH):
        raise RemoteError("login", "Modal's OAuth credentials are not supported here, only tokens", LOGIN)
    if not token_id or not token_secret:
        missing = " and ".join(
            name for name, value in (("token_id", token_id), ("token_secret", token_secret)) if not value
        )
        raise RemoteError("login", f"there is no token for Modal ({missing} is not set)", LOGIN)
    return Login(token_id=str(token_id), token_secret=str(token_secret), server=str(config.get("server_url")))


def _setting(config: Any, name: str) -> object:
    """A setting that not every version of the client has."""
    try:
        return config.get(name)
    except KeyError:
        return None


def _without_values(error: Exception) -> str:
    """What an error says of a file, in one line; what it quotes of it may be a token without quotes."""
    return _QUOTED.sub("'[hidden]'", " ".join(str(error).split()))


def knock(server: str) -> None:
    """Open a connection to the server, or to the proxy before it, and close it again: the client itself would try for
    a minute.

    Raises:
        RemoteError: it cannot be reached, or Modal's client lacks what it needs for the proxy.
    """
    last: OSError | None = None
    for url in server.split(","):
        parts = urllib.parse.urlsplit(url.strip())
        try:
            if parts.scheme == "unix":
                with socket.socket(socket.AF_UNIX) as one:
                    one.settimeout(_PREFLIGHT_S)
                    one.connect(parts.path)
            elif proxy := _proxy(parts.hostname or "", parts.scheme):
                _knock_at_proxy(proxy)
            else:
                _touch(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80))
            return
        except (OSError, ValueError) as error:  # ValueError: a port that is none
            last = error if isinstance(error, OSError) else OSError(str(error))
    raise RemoteError(
        "network",
        f"Modal's server {without_password(server)} cannot be reached: {last}",
        "look at the connection and at a proxy (HTTPS_PROXY), or at MODAL_SERVER_URL",
    )


def _touch(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=_PREFLIGHT_S):
        pass


def _proxy(host: str, scheme: str) -> str:
    """The proxy by which Modal's client would reach a host; empty for none."""
    direct = os.environ.get("MODAL_DISABLE_API_PROXY", "").lower() not in ("", "0", "false")
    knows_proxies = importlib.util.find_spec("modal._utils.proxy_support") is not None
    if direct or not knows_proxies or urllib.request.proxy_bypass(host):
        return ""
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all") or ""


def _knock_at_proxy(proxy: str) -> None:
    shown = without_password(proxy)
    if importlib.util.find_spec("python_socks") is None:
        raise RemoteError(
            "setup",
            f"a proxy is set ({shown}), and python-socks is not installed, without which Modal's client uses none",
            "pip install 'modal[api-proxy-support]', or set NO_PROXY or MODAL_DISABLE_API_PROXY=1 to use no proxy",
        )
    parts = urllib.parse.urlsplit(proxy)
    try:
        _touch(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80))
    except (OSError, ValueError) as error:
        raise RemoteError(
            "network", f"the proxy {shown} cannot be reached: {error}", "look at HTTPS_PROXY, ALL_PROXY and NO_PROXY"
        ) from error

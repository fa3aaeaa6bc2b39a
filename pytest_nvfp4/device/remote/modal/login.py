"""Checks before the first request to Modal: its client is installed, a token is set, its server can be reached."""

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

_MIN_CLIENT, _END_CLIENT = (1, 5), (2, 0)
_PREFLIGHT_S = 2.0
_OAUTH = ("oauth_refresh_token", "oauth_client_id")
_QUOTED = re.compile(r"'[^']*'")
_MIN_SECRET = 4
"""Length from which a password is hidden everywhere; shorter ones, which ordinary words contain, in addresses only."""
_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, slots=True)
class Login:
    """Token and server of Modal. Its text form shows no secret."""

    token_id: str = field(repr=False)
    token_secret: str = field(repr=False)
    server: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may contain: the token, and passwords of proxies."""
        proxies = (urllib.parse.urlsplit(proxy).password or "" for proxy in urllib.request.getproxies().values())
        long = [password for password in proxies if len(password) >= _MIN_SECRET]
        passwords = [text for password in long for text in (password, urllib.parse.unquote(password))]
        return (self.token_secret, self.token_id, *passwords)


def check_client() -> str:
    """Return the version of Modal's client. Raises RemoteError if it is missing or of an unsupported version."""
    try:
        version = importlib.metadata.version("modal")
    except importlib.metadata.PackageNotFoundError:
        raise RemoteError("setup", "Modal's client is not installed", INSTALL) from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not _MIN_CLIENT <= numbers < _END_CLIENT:
        raise RemoteError("version", f"version {version} of Modal's client is not supported", INSTALL)
    return version


def find_login() -> Login:
    """Return token and server from the configuration of Modal's client. Contacts nothing. Raises RemoteError."""
    check_client()
    try:
        from modal.config import config
    except Exception as error:  # a damaged configuration file, or a damaged installation
        do = f"correct that file, or {LOGIN}" if type(error).__name__ == "InvalidError" else INSTALL
        raise RemoteError("setup", f"Modal's client cannot be imported: {_without_values(error)}", do) from None
    token_id, token_secret = config.get("token_id"), config.get("token_secret")
    if not (token_id and token_secret) and any(_optional_setting(config, name) for name in _OAUTH):
        raise RemoteError("login", "Modal's OAuth credentials are not supported, only tokens", LOGIN)
    if not token_id or not token_secret:
        missing = [name for name, value in (("token_id", token_id), ("token_secret", token_secret)) if not value]
        which = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        raise RemoteError("login", f"no token for Modal is set ({which})", LOGIN)
    return Login(token_id=str(token_id), token_secret=str(token_secret), server=str(config.get("server_url")))


def _optional_setting(config: Any, name: str) -> object:
    """Return a setting that not every version of the client has, or None."""
    try:
        return config.get(name)
    except KeyError:
        return None


def _without_values(error: Exception) -> str:
    """Return the text of an error in one line, without quotations of the file, which may contain a token."""
    return _QUOTED.sub("'[hidden]'", " ".join(str(error).split()))


def check_reachable(server: str) -> None:
    """Open and close a connection to the server, or to its proxy; Modal's client itself would retry for a minute.

    Raises:
        RemoteError: It cannot be reached, or Modal's client lacks the package that it requires for a proxy.
    """
    last: OSError | None = None
    for url in server.split(","):
        parts = urllib.parse.urlsplit(url.strip())
        try:
            if parts.scheme == "unix":
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(_PREFLIGHT_S)
                    connection.connect(parts.path)
            elif proxy := _proxy(parts.hostname or "", parts.scheme):
                _check_proxy(proxy)
            else:
                _connect(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80))
            return
        except (OSError, ValueError) as error:  # ValueError: an invalid port
            last = error if isinstance(error, OSError) else OSError(str(error))
    raise RemoteError(
        "network",
        f"Modal's server {without_password(server)} cannot be reached: {last}",
        "check the network, a proxy (HTTPS_PROXY), and MODAL_SERVER_URL",
    )


def _connect(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=_PREFLIGHT_S):
        pass


def _proxy(host: str, scheme: str) -> str:
    """Return the proxy that Modal's client would use for a host; empty for none."""
    direct = os.environ.get("MODAL_DISABLE_API_PROXY", "").lower() not in ("", "0", "false")
    supports_proxies = importlib.util.find_spec("modal._utils.proxy_support") is not None
    if direct or not supports_proxies or urllib.request.proxy_bypass(host):
        return ""
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all") or ""


def _check_proxy(proxy: str) -> None:
    shown = without_password(proxy)
    if importlib.util.find_spec("python_socks") is None:
        raise RemoteError(
            "setup",
            f"a proxy is set ({shown}), for which Modal's client requires python-socks, which is not installed",
            "pip install 'modal[api-proxy-support]', or set NO_PROXY or MODAL_DISABLE_API_PROXY=1 to use no proxy",
        )
    parts = urllib.parse.urlsplit(proxy)
    try:
        _connect(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80))
    except (OSError, ValueError) as error:
        raise RemoteError(
            "network", f"the proxy {shown} cannot be reached: {error}", "check HTTPS_PROXY, ALL_PROXY and NO_PROXY"
        ) from error

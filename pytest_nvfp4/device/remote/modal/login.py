"""Before anything is asked of Modal: is its client here, is there a token, can its server be reached at all?"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import urllib.parse
from dataclasses import dataclass, field

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal.errors import INSTALL, LOGIN

_LEAST = (1, 5)
_MOST = (2, 0)
_PREFLIGHT_S = 2.0
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are to Modal. Its text form shows no secret."""

    token_id: str = field(repr=False)
    token_secret: str = field(repr=False)
    server: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown."""
        return (self.token_secret, self.token_id)


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
        raise RemoteError("setup", f"Modal's client cannot be loaded: {error}", INSTALL) from error
    token_id, token_secret = config.get("token_id"), config.get("token_secret")
    if not token_id or not token_secret:
        missing = " and ".join(
            name for name, value in (("token_id", token_id), ("token_secret", token_secret)) if not value
        )
        raise RemoteError("login", f"there is no token for Modal ({missing} is not set)", LOGIN)
    return Login(token_id=str(token_id), token_secret=str(token_secret), server=str(config.get("server_url")))


def knock(server: str) -> None:
    """Open a connection to the server and close it again: the client itself would try for a minute.

    Behind a proxy nothing is tried: names may not even resolve there.

    Raises:
        RemoteError: it cannot be reached.
    """
    direct = os.environ.get("MODAL_DISABLE_API_PROXY", "").lower() in ("1", "true", "yes")
    if not direct and any(os.environ.get(name) for name in _PROXIES):
        return
    last: OSError | None = None
    for url in server.split(","):
        parts = urllib.parse.urlsplit(url.strip())
        try:
            if parts.scheme == "unix":
                with socket.socket(socket.AF_UNIX) as one:
                    one.settimeout(_PREFLIGHT_S)
                    one.connect(parts.path)
            else:
                port = parts.port or (443 if parts.scheme == "https" else 80)
                with socket.create_connection((parts.hostname or "", port), timeout=_PREFLIGHT_S):
                    pass
            return
        except OSError as error:
            last = error
    raise RemoteError(
        "network",
        f"Modal's server {server} cannot be reached: {last}",
        "look at the connection and at a proxy (HTTPS_PROXY), or at MODAL_SERVER_URL",
    )

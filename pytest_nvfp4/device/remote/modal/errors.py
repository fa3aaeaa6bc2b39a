"""Modal's errors in words: what happened, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_nvfp4.device.remote.base import RemoteError, Trouble

INSTALL = "install it with: pip install 'pytest-nvfp4[modal]' (or: pip install 'modal>=1.5.4,<2')"
LOGIN = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
DEPLOY = "deploy it with: modal deploy -m pytest_nvfp4.device.remote.modal.app"
_NETWORK = "look at the connection, a proxy (HTTPS_PROXY) and status.modal.com, and run again with --nvfp4-resume"
_RESUME = "run again with --nvfp4-resume: what has been answered is kept"
_UPGRADE = "upgrade the package modal"
_OLD_CLIENT = re.compile(
    r"(client|version)[^.]*(too old|out of date|unsupported|not supported|no longer supported|upgrade)", re.IGNORECASE
)
_USER = re.compile(r"(?<=://)[^\s/]*@")
_MOST = 1500

_BY_NAME: dict[str, tuple[Trouble, str, str]] = {
    "AuthError": ("login", "Modal refused the token", f"{LOGIN}; a token belongs to one workspace"),
    "PermissionDeniedError": (
        "login",
        "Modal does not permit this to the token's workspace",
        f"ask for it there, or {LOGIN}",
    ),
    "ConnectionError": ("network", "Modal cannot be reached", _NETWORK),
    "ServiceError": ("network", "Modal's servers have a problem", _NETWORK),
    "InternalError": ("network", "Modal's servers have a problem", _NETWORK),
    "ClientClosed": ("network", "the connection to Modal was closed", _RESUME),
    "VersionError": ("version", "Modal no longer speaks to this version of its client", _UPGRADE),
    "ImageBuildError": (
        "image",
        "the container's image could not be built",
        "its build log names the step (modal.com, or `modal image logs`); NVFP4_MODAL_IMAGE chooses another base image",
    ),
    "ResourceExhaustedError": (
        "capacity",
        "Modal has no more for this workspace (a limit on spending, containers or requests)",
        "look at modal.com/settings, or use fewer --nvfp4-remote-containers",
    ),
    "NotFoundError": (
        "setup",
        "Modal does not know what was asked for",
        "was the app stopped on modal.com? Run again with --nvfp4-resume: what has been answered is kept",
    ),
    "InvalidError": ("setup", "Modal refused the request", "the text names the value"),
    "RequestSizeError": ("setup", "the job is too large to be sent", "verify fewer problems at once"),
    "FunctionTimeoutError": (
        "timeout",
        "the container was stopped at its time limit",
        "allow more with --nvfp4-remote-timeout (of a deployed app, NVFP4_MODAL_TIMEOUT when it is deployed), "
        "or look for a kernel that hangs",
    ),
    "OutputExpiredError": ("lost", "the result was not fetched in time and is gone", _RESUME),
    "InternalFailure": ("lost", "the container was lost (preempted, or its machine failed)", _RESUME),
    "DeserializationError": ("version", "the answer cannot be read", "use the same versions on both sides"),
    "SerializationError": ("version", "the request cannot be sent", "use the same versions on both sides"),
}
_BY_TEXT: tuple[tuple[re.Pattern[str], Trouble, str, str], ...] = (
    (
        re.compile(r"\[INIT_FAILURE\]"),
        "image",
        "no container could be started",
        "the app's log on modal.com says more; deploy the app again, or choose another base image (NVFP4_MODAL_IMAGE)",
    ),
    (
        re.compile(r"\[(MEMORY_MANAGER_EVICTION|MEMORY_THRASHING_EVICTION|KERNEL_OOM_KILL)\]"),
        "memory",
        "the container ran out of host memory",
        "use smaller problems a job, or fewer inputs at once",
    ),
    (
        re.compile(r"was modified during build"),
        "setup",
        "a file of this package changed while it was being sent",
        "run it again",
    ),
    (
        re.compile(r"input queue seems to be full"),
        "capacity",
        "Modal takes no more jobs of this app now",
        "use fewer --nvfp4-remote-containers, or try again later",
    ),
    (
        re.compile(r"\b(oom|out of memory|memory limit|exit code:? 137)\b", re.IGNORECASE),
        "memory",
        "the container ran out of host memory",
        "use smaller problems a job, or fewer inputs at once",
    ),
    (
        re.compile(r"preempt", re.IGNORECASE),
        "lost",
        "the container was preempted",
        _RESUME,
    ),
    (
        re.compile(r"image.*(build|failed)|failed to (build|pull)", re.IGNORECASE),
        "image",
        "the container's image could not be built",
        "the text names the step; NVFP4_MODAL_IMAGE chooses another base image",
    ),
    (re.compile(r"\b(cancel|terminat)", re.IGNORECASE), "cancelled", "the call was cancelled on Modal's side", _RESUME),
    (
        re.compile(r"(container|runner|task).*(exit|died|killed|crash|lost|fail)|signal \d+|sigkill", re.IGNORECASE),
        "lost",
        "the container ended before it had an answer",
        _RESUME,
    ),
)


def explain(error: BaseException, *, doing: str, secrets: Iterable[str] = (), deployed: bool = False) -> RemoteError:
    """What an error of the client's means.

    Args:
        error: The error.
        doing: What was being done, as in "while DOING".
        secrets: Texts that must not appear in what is said.
        deployed: A deployed app is used.
    """
    if isinstance(error, RemoteError):
        return error
    last = getattr(error, "final_exception", None)  # of one that was tried again until its time was over
    if isinstance(last, Exception):
        return explain(last, doing=doing, secrets=secrets, deployed=deployed)
    text = clean(str(error), secrets)
    name = type(error).__name__
    said = f": {text}" if text else ""
    if _OLD_CLIENT.search(text):
        return RemoteError("version", f"Modal refuses this version of its client (while {doing}){said}", _UPGRADE)
    if name == "PickledAnswerError":
        return RemoteError("far", f"{text} (while {doing})", "a kernel may have taken the container over: look at it")
    if name.startswith("CBOR") or type(error).__module__.startswith("cbor2"):
        return RemoteError("lost", f"what came over the network is damaged (while {doing}){said}", _RESUME)
    for kind in type(error).__mro__:
        if kind.__module__.split(".")[0] == "modal" and kind.__name__ in _BY_NAME:
            trouble, what, do = _BY_NAME[kind.__name__]
            if kind.__name__ == "NotFoundError" and deployed:
                do = DEPLOY
            return RemoteError(trouble, f"{what} (while {doing}){said}", do)
    if isinstance(error, (OSError, EOFError)) or name in ("StreamTerminatedError", "GRPCError"):
        return RemoteError("network", f"the connection to Modal broke (while {doing}){said or f': {name}'}", _NETWORK)
    for pattern, trouble, what, do in _BY_TEXT:
        if pattern.search(text):
            return RemoteError(trouble, f"{what} (while {doing}){said}", do)
    return RemoteError("far", f"{name} (while {doing}){said}", "look at the app's log on modal.com")


def is_damaged(error: BaseException) -> bool:
    """Whether an answer came that cannot be read, or came in part; it may be whole when it is asked for again."""
    if isinstance(error, RemoteError):
        return error.trouble == "lost"
    if type(error).__name__ == "PickledAnswerError":
        return False
    module = type(error).__module__.split(".")[0]
    return type(error).__name__.startswith("CBOR") or module in ("cbor2", "aiohttp") or "Get from url" in str(error)


def silent(seconds: float, *, doing: str) -> RemoteError:
    """A server that does not answer."""
    return RemoteError(
        "network",
        f"Modal's server accepts connections but has not answered for {seconds:.0f} s (while {doing})",
        _NETWORK,
    )


def gone(what: str, *, doing: str) -> RemoteError:
    """A server that was there and cannot be reached any more."""
    return RemoteError("network", f"{what} (while {doing})", _NETWORK)


def clean(text: str, secrets: Iterable[str]) -> str:
    """A text without secrets, of a bounded length."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[hidden]")
    text = without_password(text).strip()
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]} [...] {text[-_MOST // 2 :]}"


def without_password(text: str) -> str:
    """A text whose addresses name no user and no password."""
    return _USER.sub("[hidden]@", text)

"""Errors of Modal's client: their kind, a description, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_nvfp4.device.remote.base import ErrorKind, RemoteError

INSTALL = "install it with: pip install 'pytest-nvfp4[modal]' (or: pip install 'modal>=1.5.4,<2')"
LOGIN = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
DEPLOY = "deploy it with: modal deploy -m pytest_nvfp4.device.remote.modal.app"
_NETWORK = "check the network, a proxy (HTTPS_PROXY) and status.modal.com, and run again with --nvfp4-resume"
_RESUME = "run again with --nvfp4-resume: received results are cached"
_UPGRADE = "upgrade the package modal"
_REST_OF_SENTENCE = r"(?:[^.]|\.(?=\S))*"  # a version has dots too
_OLD_CLIENT = re.compile(
    rf"\bclient\b{_REST_OF_SENTENCE}\b(too old|out of date|outdated|unsupported|deprecated|supported|upgrade)\b",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = r"(?i)\b(oom|oom.?killed|out of memory|memory limit)\b"
_KILLED = r"(?i)\bexit(ed with)? (code|status):? 137\b"
_USER = re.compile(r"(?<=://)[^\s/]*@")
_MAX_LENGTH = 1500

_HOST_MEMORY: tuple[ErrorKind, str, str] = (
    "memory",
    "the container ran out of host memory",
    "use smaller problems per job, or fewer inputs at once",
)
_KILLED_CONTAINER: tuple[ErrorKind, str, str] = (
    "lost",
    "the container was killed: preempted, or out of host memory (137 is 128 + SIGKILL and names no cause)",
    f"{_RESUME}; if it happens again, use smaller problems per job",
)
_BY_NAME: dict[str, tuple[ErrorKind, str, str]] = {
    "AuthError": ("login", "Modal refused the token", f"{LOGIN}; a token belongs to one workspace"),
    "PermissionDeniedError": (
        *("login", "Modal does not permit this to the token's workspace"),
        f"request the permission there, or {LOGIN}",
    ),
    "ConnectionError": ("network", "Modal cannot be reached", _NETWORK),
    "ServiceError": ("network", "Modal's servers report a problem", _NETWORK),
    "InternalError": ("network", "Modal's servers report a problem", _NETWORK),
    "ClientClosed": ("network", "the connection to Modal was closed", _RESUME),
    "DataLossError": ("lost", "Modal has lost the result", _RESUME),
    "MountUploadTimeoutError": ("network", "the upload took too long", _NETWORK),
    "UnimplementedError": ("version", "Modal's server does not know this request of its client", _UPGRADE),
    "VersionError": ("version", "Modal no longer supports this version of its client", _UPGRADE),
    "ImageBuildError": (
        "image",
        "the container's image could not be built",
        "its build log names the step (modal.com, or `modal image logs`); NVFP4_MODAL_IMAGE sets another base image",
    ),
    "ResourceExhaustedError": (
        "capacity",
        "Modal has no more capacity for this workspace (a limit on spending, containers or requests)",
        "check modal.com/settings, or use fewer --nvfp4-remote-containers",
    ),
    "NotFoundError": (
        "setup",
        "Modal does not have the requested object",
        f"check that the app was not stopped on modal.com; {_RESUME}",
    ),
    "InvalidError": ("setup", "Modal refused the request", "the text names the value"),
    "RequestSizeError": ("setup", "the job is too large to be sent", "verify fewer problems at once"),
    "FunctionTimeoutError": (
        "timeout",
        "the container was stopped at its time limit",
        "raise --nvfp4-remote-timeout (for a deployed app, NVFP4_MODAL_TIMEOUT when it is deployed), "
        "or check for a kernel that hangs",
    ),
    "OutputExpiredError": ("lost", "the result was not fetched in time and is deleted", _RESUME),
    "InternalFailure": ("lost", "the container was lost (preempted, or its machine failed)", _RESUME),
    "DeserializationError": ("version", "the response cannot be read", "use the same versions on both sides"),
    "SerializationError": ("version", "the request cannot be sent", "use the same versions on both sides"),
}
"""Errors by the name of their class in `modal.exception`."""
_BY_TEXT: tuple[tuple[str, tuple[ErrorKind, str, str]], ...] = (
    # Statuses that `call_tracker` appends to the text.
    (
        r"\[INIT_FAILURE\]",
        (
            "image",
            "no container could be started",
            "check the app's log on modal.com; deploy the app again, or choose another base image (NVFP4_MODAL_IMAGE)",
        ),
    ),
    (r"\[(MEMORY_MANAGER_EVICTION|MEMORY_THRASHING_EVICTION|KERNEL_OOM_KILL)\]", _HOST_MEMORY),
    # Texts of Modal's client and server.
    (r"was modified during build", ("setup", "a file of this package changed while it was uploaded", "run it again")),
    (
        r"input queue seems to be full",
        (
            "capacity",
            "Modal accepts no more jobs of this app now",
            "use fewer --nvfp4-remote-containers, or try again later",
        ),
    ),
    (_OUT_OF_MEMORY, _HOST_MEMORY),
    (_KILLED, _KILLED_CONTAINER),
    (r"(?i)preempt", ("lost", "the container was preempted", _RESUME)),
    (
        r"(?i)image.*(build|failed)|failed to (build|pull)",
        (
            "image",
            "the container's image could not be built",
            "the text names the step; NVFP4_MODAL_IMAGE sets another base image",
        ),
    ),
    (r"(?i)\b(cancel|terminat)", ("cancelled", "the call was cancelled on Modal's side", _RESUME)),
    (
        r"(?i)(container|runner|task).*(exit|died|killed|crash|lost|fail)|signal \d+|sigkill",
        ("lost", "the container ended before it returned a result", _RESUME),
    ),
)
"""Errors by a pattern of their text; the first match applies."""
_GONE_CALL: tuple[ErrorKind, str, str] = ("lost", "Modal no longer has this call", _RESUME)
_OF_CONTAINERS = ("RemoteError", "InternalFailure", "FunctionTimeoutError")
"""Classes whose text a container wrote: it says nothing about this machine's client."""


def explain(
    error: BaseException, *, doing: str, secrets: Iterable[str] = (), deployed: bool = False, of_call: bool = False
) -> RemoteError:
    """Convert an error of Modal's client.

    Args:
        error: The error.
        doing: What was being done, as in "while DOING".
        secrets: Texts that must not appear in the message.
        deployed: Whether a deployed app is used.
        of_call: Whether it is the error of one call, so that the app of a missing object may still be there.
    """
    if isinstance(error, RemoteError):
        return error
    last = getattr(error, "final_exception", None)  # of a `RetryTimeoutError`: the error of the last attempt
    if isinstance(last, Exception):
        return explain(last, doing=doing, secrets=secrets, deployed=deployed, of_call=of_call)
    text = clean(str(error), secrets)
    name = type(error).__name__
    detail = f" (while {doing})" + (f": {text}" if text else "")
    if name not in _OF_CONTAINERS and _OLD_CLIENT.search(text):
        return RemoteError("version", f"Modal refuses this version of its client{detail}", _UPGRADE)
    if name == "PickledResponseError":
        return RemoteError(
            "remote", f"{text} (while {doing})", "inspect the kernel: it may have taken control of the container"
        )
    if name.startswith("CBOR") or type(error).__module__.startswith("cbor2"):
        return RemoteError("lost", f"the data received over the network is damaged{detail}", _RESUME)
    for base in type(error).__mro__:
        if base.__module__.split(".")[0] == "modal" and base.__name__ in _BY_NAME:
            kind, problem, remedy = _BY_NAME[base.__name__]
            if base.__name__ == "NotFoundError" and of_call:
                kind, problem, remedy = _GONE_CALL
            elif base.__name__ == "NotFoundError" and deployed:
                remedy = DEPLOY
            elif base.__name__ == "InternalFailure" and re.search(_OUT_OF_MEMORY, text):
                kind, problem, remedy = _HOST_MEMORY
            elif base.__name__ == "InternalFailure" and re.search(_KILLED, text):
                kind, problem, remedy = _KILLED_CONTAINER
            return RemoteError(kind, f"{problem}{detail}", remedy)
    if isinstance(error, (OSError, EOFError)) or name in ("StreamTerminatedError", "GRPCError"):
        problem = f"the connection to Modal broke (while {doing}): {text or name}"
        return RemoteError("network", problem, _NETWORK)
    for pattern, (kind, problem, remedy) in _BY_TEXT:
        if re.search(pattern, text):
            return RemoteError(kind, f"{problem}{detail}", remedy)
    return RemoteError("remote", f"{name}{detail}", "check the app's log on modal.com")


def is_damaged(error: BaseException) -> bool:
    """Return whether a response arrived damaged or incomplete, so that fetching it again may help."""
    if isinstance(error, RemoteError):
        return error.kind == "lost"
    if type(error).__name__ == "PickledResponseError":
        return False
    module = type(error).__module__.split(".")[0]
    # The client fetches large responses by HTTP ("Get from url ..."), with aiohttp.
    return type(error).__name__.startswith("CBOR") or module in ("cbor2", "aiohttp") or "Get from url" in str(error)


def silent(seconds: float, *, doing: str) -> RemoteError:
    """Return the error of a server that does not respond."""
    problem = f"Modal's server accepts connections but has not responded for {seconds:.0f} s (while {doing})"
    return RemoteError("network", problem, _NETWORK)


def gone(problem: str, *, doing: str) -> RemoteError:
    """Return the error of a server that can no longer be reached."""
    return RemoteError("network", f"{problem} (while {doing})", _NETWORK)


def clean(text: str, secrets: Iterable[str]) -> str:
    """Return a text without secrets, of a bounded length."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[hidden]")
    text = without_password(text).strip()
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH // 2]} [...] {text[-_MAX_LENGTH // 2 :]}"


def without_password(text: str) -> str:
    """Return a text without user names and passwords in addresses."""
    return _USER.sub("[hidden]@", text)

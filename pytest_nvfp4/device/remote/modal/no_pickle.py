"""What containers answer is never unpickled: a kernel that took one over could otherwise run code here.

Modal's client opens whatever form an answer says it has. Our functions are declared to answer in CBOR only, but the
declaration is kept by the container. So, for our own clients and no others, the client's two functions that open
answers refuse everything but CBOR. They are internal, and looked up by name: a version of the client that has them
elsewhere is refused, not used without this.
"""

from __future__ import annotations

import functools
import importlib
import threading
import weakref
from typing import Any

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal.errors import INSTALL

_MARK = "_nvfp4_guarded"
_lock = threading.Lock()


class PickledAnswerError(Exception):
    """An answer that is not CBOR."""

    def __init__(self) -> None:
        super().__init__("the container answered with a pickle, which is not opened")


def refuse_pickles(client: Any) -> None:
    """Open no pickles that come by way of this client. Raises RemoteError where that cannot be arranged."""
    try:
        utils: Any = importlib.import_module("modal._utils.function_utils")
        synchronizer: Any = importlib.import_module("modal._utils.async_utils").synchronizer
        own = synchronizer._translate_in(client)
        with _lock:
            _guard(utils, "deserialize", opens_pickles=True)
            _guard(utils, "deserialize_data_format", opens_pickles=False)
            utils.deserialize.__dict__[_MARK].add(own)
            utils.deserialize_data_format.__dict__[_MARK].add(own)
    except (ImportError, AttributeError, TypeError) as error:
        raise RemoteError(
            "version",
            f"this version of Modal's client opens answers in a way that cannot be guarded ({error})",
            INSTALL,
        ) from error


def _guard(module: Any, name: str, *, opens_pickles: bool) -> None:
    original = getattr(module, name)
    if hasattr(original, _MARK):
        return
    ours: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        client = kwargs.get("client", args[-1] if args else None)
        if client in ours:
            from modal_proto import api_pb2

            allowed = (api_pb2.DATA_FORMAT_CBOR, api_pb2.DATA_FORMAT_GENERATOR_DONE)
            if opens_pickles or kwargs.get("data_format", args[1] if len(args) > 1 else None) not in allowed:
                raise PickledAnswerError
        return original(*args, **kwargs)

    guarded.__dict__[_MARK] = ours
    setattr(module, name, guarded)

"""Guard against pickles in responses of containers: a kernel that controls its container could run code here.

Modal's client decodes whatever format a response declares. Our functions are declared to return CBOR only, but it is
the container that keeps this declaration. So the two functions of Modal's client that decode responses refuse
everything but CBOR, for the clients of this package only. They are internal and looked up by name; a version of
Modal's client without them is refused rather than used unguarded.
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


class PickledResponseError(Exception):
    """A response that is not CBOR."""

    def __init__(self) -> None:
        super().__init__("the container returned a pickle, which is refused")


def refuse_pickles(client: Any) -> None:
    """Refuse pickles that this client receives. Raises RemoteError if its version has no such hook."""
    try:
        utils: Any = importlib.import_module("modal._utils.function_utils")
        synchronizer: Any = importlib.import_module("modal._utils.async_utils").synchronizer
        inner = synchronizer._translate_in(client)  # the object behind the blocking wrapper
        with _lock:
            _guard(utils, "deserialize", opens_pickles=True)
            _guard(utils, "deserialize_data_format", opens_pickles=False)
            utils.deserialize.__dict__[_MARK].add(inner)
            utils.deserialize_data_format.__dict__[_MARK].add(inner)
    except (ImportError, AttributeError, TypeError) as error:
        problem = f"this version of Modal's client decodes responses in a way that cannot be guarded ({error})"
        raise RemoteError("version", problem, INSTALL) from error


def _guard(module: Any, name: str, *, opens_pickles: bool) -> None:
    original = getattr(module, name)
    if hasattr(original, _MARK):
        return
    guarded_clients: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        client = kwargs.get("client", args[-1] if args else None)
        if client in guarded_clients:
            from modal_proto import api_pb2

            allowed = (api_pb2.DATA_FORMAT_CBOR, api_pb2.DATA_FORMAT_GENERATOR_DONE)
            if opens_pickles or kwargs.get("data_format", args[1] if len(args) > 1 else None) not in allowed:
                raise PickledResponseError
        return original(*args, **kwargs)

    guarded.__dict__[_MARK] = guarded_clients
    setattr(module, name, guarded)

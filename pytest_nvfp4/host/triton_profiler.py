"""A stand-in for what Triton's profiler, Proton, collects of a device: it subscribes to CUPTI, which needs a driver.

A session keeps the scopes, and the names and metrics of launches, that Proton collects without CUPTI; there are no
times. ``finalize`` writes the file as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

_CUPTI: Final = "cupti"
_WITHOUT_DEVICE: Final = "instrumentation", "cuda"
"""Backend and mode that subscribe to nothing; Proton's hook, which is not registered here, would change the kernels."""


def patches(profile: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """Yield the owner, name and value of each replacement in ``triton.profiler.profile``."""
    if hasattr(profile, "libproton"):
        yield profile, "libproton", _WithoutCupti(profile.libproton)


class _WithoutCupti:
    """Proton's library, whose sessions do not subscribe to CUPTI."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def start(self, name: str, context: str, data: str, backend: str, *mode: str) -> Any:
        """Start a session and return its number."""
        if backend.startswith(_CUPTI):
            backend, mode = _WITHOUT_DEVICE[0], _WITHOUT_DEVICE[1:] if mode else ()
        return self._library.start(name, context, data, backend, *mode)

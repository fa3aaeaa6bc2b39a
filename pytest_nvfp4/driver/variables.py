"""Device memory of a module's variables: ``__device__`` and ``__constant__`` ones of CUDA C++, ``.global`` of PTX."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pytest_nvfp4.driver import ptx_module
from pytest_nvfp4.driver.launches import HostSideError, ModuleImage
from pytest_nvfp4.driver.memory import DeviceMemory
from pytest_nvfp4.driver.streams import Extent

Variables: TypeAlias = Callable[[ModuleImage, bool], Mapping[str, Extent]]
"""Returns the memory of a module's variables by name; with True they get their initial values again."""


class UnreadVariables:
    """Memory for the variables of modules that nothing executes: it holds zeros, whatever their initial values are.

    Args:
        memory: Its allocator.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._placed: dict[int, tuple[ModuleImage, dict[str, Extent]]] = {}

    def __call__(self, image: ModuleImage, fresh: bool) -> Mapping[str, Extent]:
        """See ``Variables``."""
        _, placed = self._placed.setdefault(id(image), (image, {}))  # the reference keeps the identity unique
        for name, size in declared(image).items():
            if name not in placed:
                placed[name] = Extent(self._memory.allocate(size), size)
            elif not fresh:
                continue
            ctypes.memset(placed[name].address, 0, size)
        return placed


def declared(image: ModuleImage) -> Mapping[str, int]:
    """Return the bytes of a module's variables by name. Raises HostSideError: its PTX is unknown or not readable."""
    if image.ptx is None:
        raise HostSideError(
            "the variables of a module that was loaded from a CUBIN are unknown without its PTX: load PTX (nvcc -ptx, "
            "or NVRTC in this process)"
        )
    try:
        return ptx_module.parse(image.ptx).variables
    except ptx_module.PtxModuleError as error:
        raise HostSideError(f"the variables of a module cannot be listed: {error}") from None

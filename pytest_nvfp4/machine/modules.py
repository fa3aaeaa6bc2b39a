"""Modules that the kernel's process has loaded, and launches of their kernels, checked like a driver checks them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from pytest_nvfp4.driver import cubin, ptx_module
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launch_limits import check_code, check_launch, check_sizes
from pytest_nvfp4.driver.launches import Dim3, HostSideError, Launch, ModuleImage

_MOST_MODULES: Final = 4096


class Modules:
    """The loaded modules of one kernel's process on a device."""

    def __init__(self, device: DeviceModel) -> None:
        self._device = device
        self._modules: list[tuple[ModuleImage, Mapping[str, cubin.CubinKernel]]] = []
        self._known: dict[tuple[bytes, bytes | None], int] = {}
        self._with_variables: set[int] = set()
        self._launched = 0

    def add(self, image: bytes, ptx: bytes | None) -> int:
        """Add a module and return its number; without an image, its kernels are those of the PTX.

        A module without variables is added once.

        Raises:
            HostSideError: it cannot be read, or the image is not that of the PTX.
        """
        if (known := self._known.get((image, ptx))) is not None:
            return known
        if len(self._modules) >= _MOST_MODULES:
            raise HostSideError(f"more than {_MOST_MODULES} modules are loaded")
        try:
            text = None if ptx is None else ptx.decode("utf-8", errors="strict")
            written = None if text is None else ptx_module.parse(text)
            entries = written.kernels if written is not None and not image else cubin.parse(image)
        except (ValueError, struct.error, IndexError, OverflowError) as error:
            raise HostSideError(f"a module cannot be read: {str(error)[:400]}") from None
        sizes = {name: tuple(size for _, size in entry.params) for name, entry in entries.items()}
        if written is not None and image:
            if missing := set(entries) - set(written.kernels):
                raise HostSideError(f"the PTX of a module has no kernel {min(missing)[:200]}")
            check_sizes(entries, written)
            check_code(entries, written)
        self._modules.append(
            (ModuleImage(cubin=image, ptx=text, param_sizes=sizes, registers=cubin.moved_registers(entries)), entries)
        )
        number = len(self._modules) - 1
        if written is not None and written.variables:
            self._with_variables.add(number)
        else:
            self._known[image, ptx] = number
        return number

    def with_variables(self, module: int) -> ModuleImage | None:
        """Return a module by its number, or None if it has no variables. Raises HostSideError: there is none."""
        if module >= len(self._modules):
            raise HostSideError(f"there is no module {module}")
        return self._modules[module][0] if module in self._with_variables else None

    def launch(
        self,
        module: int,
        kernel: str,
        *,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3,
        dynamic_smem: int,
        stream: int,
        attributes: Mapping[int, bytes],
        params: Sequence[bytes],
    ) -> Launch:
        """Return a launch. Raises HostSideError (LaunchRejectedError): a driver would refuse it."""
        image, entries = self._modules[module] if module < len(self._modules) else (None, {})
        entry = entries.get(kernel)
        if image is None or entry is None:
            raise HostSideError(f"a launch of {kernel[:200]}, which is in no loaded module")
        sizes = [size for _, size in entry.params]
        if [len(param) for param in params] != sizes:
            raise HostSideError(f"a launch of {kernel[:200]} with parameters of {[len(p) for p in params][:64]} bytes")
        launch = Launch(
            kernel=kernel,
            grid=grid,
            block=block,
            cluster=cluster,
            dynamic_smem=dynamic_smem,
            stream=stream,
            params=tuple(params),
            attributes=attributes,
            module=image,
            ordinal=self._launched,
        )
        # The kernel's process has checked it against the attributes that it set; no attribute permits more than these.
        check_launch(launch, entry, self._device, reserved=self._device.smem_per_block_optin, portable=False)
        self._launched += 1
        return launch

"""Modules that host code loads through the driver's functions, their kernels, and launches of these.

A module is loaded as PTX, or as a CUBIN; the PTX of a CUBIN that this process has compiled is known. A CUBIN without
its PTX can be loaded and asked about, and a launch of its kernels is refused: the simulator executes PTX.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pytest_nvfp4.driver import cubin, ptx_module
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launch_limits import check_launch, threads_by_registers
from pytest_nvfp4.driver.launches import Dim3, HostSideError, Launch, LaunchAttribute, LaunchRejectedError, ModuleImage
from pytest_nvfp4.driver.parameter_bytes import Read, read_bytes, with_zeros
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.host.device_side import DeviceSide

_ELF: Final = b"\x7fELF"
_MAX_DYNAMIC_SMEM: Final = 8
_NON_PORTABLE_CLUSTER: Final = 14
_CLUSTER_WIDTH: Final = 10
_DEFAULT_DYNAMIC_SMEM: Final = 49152
_ON: Final = (1).to_bytes(4, "little").ljust(64, b"\0")
_TARGET: Final = re.compile(r"^\s*\.target\s+sm_(\d+)(\d)([af]?)\b", re.MULTILINE)


@dataclass(slots=True)
class _LoadedModule:
    """A loaded module: its code, the handles of its kernels by name, and whether it has variables."""

    image: ModuleImage
    kernels: dict[str, int]
    has_variables: bool


@dataclass(slots=True)
class LoadedKernel:
    """A kernel of a loaded module, with the attributes set on it, by the number of the driver's enumeration."""

    entry: cubin.CubinKernel
    image: ModuleImage
    cluster: tuple[int, int, int] | None = None
    """The cluster that its PTX requires, which a launch need not state."""
    attributes: dict[int, int] = field(default_factory=dict)
    _read: Read | None = field(default=None, init=False, repr=False)

    def meaningful(self, params: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the bytes of a launch's parameters, with zeros for what no instruction reads."""
        if self.image.ptx is None:
            return tuple(params)
        if self._read is None:
            self._read = read_bytes(self.image.ptx, self.entry.name)
        return with_zeros(params, self._read)


class LoadedModules:
    """The loaded modules of this process. ``handles`` numbers modules and kernels."""

    def __init__(self, device: DeviceModel, side: DeviceSide, handles: Iterator[int]) -> None:
        self._device = device
        self._side = side
        self._handles = handles
        self._modules: dict[int, _LoadedModule] = {}
        self._kernels: dict[int, LoadedKernel] = {}
        self._launched = itertools.count()
        self._compiled: dict[bytes, str] = {}
        self._images: dict[tuple[bytes, str | None], list[ModuleImage]] = {}
        """By CUBIN and PTX, what the device knows already and another load may use."""
        self._read: dict[str, ptx_module.PtxModule] = {}

    def compiled(self, image: bytes, ptx: str) -> None:
        """Note the PTX of a CUBIN that a compiler in this process has made."""
        self._compiled[image] = ptx

    def read(self, text: str) -> ptx_module.PtxModule:
        """Return what a PTX text declares. Raises PtxModuleError."""
        if text not in self._read:
            self._read[text] = ptx_module.parse(text)
        return self._read[text]

    def load(self, code: bytes) -> int:
        """Load a module, a CUBIN or PTX, and return its handle.

        Raises:
            HostSideError: it is neither, or is for another device.
        """
        image = code if code[:4] == _ELF else b""
        try:
            text = self._compiled.get(code) if image else code.rstrip(b"\0").decode()
            entries = cubin.parse(image) if image or text is None else self.read(text).kernels
        except ValueError as error:
            raise LaunchRejectedError(f"CUDA_ERROR_INVALID_PTX: a module cannot be loaded: {error}") from None
        if text is not None:
            self._check_target(text)
        return self.add(entries, image, text)

    def add(self, entries: Mapping[str, cubin.CubinKernel], image: bytes, text: str | None) -> int:
        """Add a module of some kernels, a CUBIN (empty for none) and its PTX, if known; return its handle.

        Loads of the same code share what the device knows of it, unless it has variables: each load has its own.
        """
        written = None if text is None else self.read(text)
        has_variables = written is not None and bool(written.variables)
        unused = self._images.setdefault((image, text), [])
        if unused:
            module = unused.pop() if has_variables else unused[0]
            if has_variables:
                self._side.launches.variables(module, fresh=True)
        else:
            sizes = {name: tuple(size for _, size in entry.params) for name, entry in entries.items()}
            module = ModuleImage(cubin=image, ptx=text, param_sizes=sizes, registers=cubin.moved_registers(entries))
            if not has_variables:
                unused.append(module)
        kernels = {name: next(self._handles) for name in entries}
        for name, handle in kernels.items():
            cluster = None if written is None else written.clusters.get(name)
            self._kernels[handle] = LoadedKernel(entries[name], module, cluster)
        handle = next(self._handles)
        self._modules[handle] = _LoadedModule(module, kernels, has_variables)
        return handle

    def _check_target(self, text: str) -> None:
        target = _TARGET.search(text)
        if target is None:
            raise LaunchRejectedError("CUDA_ERROR_INVALID_PTX: the PTX of a module has no .target")
        wanted, has = (int(target[1]), int(target[2])), self._device.capability
        fits = {"a": wanted == has, "f": wanted[0] == has[0] and wanted <= has, "": wanted <= has}[target[3]]
        if not fits:
            name = f"sm_{target[1]}{target[2]}{target[3]}"
            raise LaunchRejectedError(
                f"CUDA_ERROR_NO_BINARY_FOR_GPU: a module was compiled for {name}, which {self._device.name} (compute "
                f"capability {has[0]}.{has[1]}) does not run: choose the architecture (arch, --arch)"
            )

    def unload(self, module: int) -> None:
        """Unload a module; its handles are invalid from then on."""
        loaded = self._loaded(module)
        for handle in loaded.kernels.values():
            del self._kernels[handle]
        if loaded.has_variables:
            self._images[loaded.image.cubin, loaded.image.ptx].append(loaded.image)
        del self._modules[module]

    def _loaded(self, module: int) -> _LoadedModule:
        if module not in self._modules:
            raise HostSideError(f"module {module:#x} is not loaded: unloaded before its last use?")
        return self._modules[module]

    def kernels(self, module: int) -> Mapping[str, int]:
        """Return the handles of a module's kernels by name. Raises HostSideError: it is not loaded."""
        return self._loaded(module).kernels

    def variable(self, module: int, name: str) -> Extent:
        """Return the memory of a module's variable. Raises HostSideError: it has no such variable."""
        found = self._side.launches.variables(self._loaded(module).image)
        if name not in found:
            has = f"has {sorted(found)[:20]}" if found else "has none"
            raise HostSideError(
                f"CUDA_ERROR_NOT_FOUND: variable {name} is not in the module, which {has}: a variable of C++ has a "
                'mangled name unless it is extern "C", and one that no kernel uses may be left out by the compiler'
            )
        return found[name]

    def kernel(self, handle: int) -> LoadedKernel:
        """Return a kernel. Raises HostSideError: it belongs to no loaded module."""
        kernel = self._kernels.get(handle)
        if kernel is None:
            raise HostSideError(f"kernel {handle:#x} belongs to no loaded module: unloaded before its last use?")
        return kernel

    def find(self, module: int, name: str) -> int:
        """Return the handle of a kernel by its name. Raises HostSideError."""
        kernels = self.kernels(module)
        if name not in kernels:
            raise HostSideError(
                f"CUDA_ERROR_NOT_FOUND: kernel {name} is not in the module, which has {sorted(kernels)}: a kernel of "
                'C++ has a mangled name unless it is extern "C" (nvrtcGetLoweredName returns it)'
            )
        return kernels[name]

    def set_attribute(self, handle: int, attribute: int, value: int) -> None:
        """Set an attribute of a kernel. Raises LaunchRejectedError: the driver refuses the value."""
        kernel = self.kernel(handle)
        if attribute == _MAX_DYNAMIC_SMEM:
            limit = self._device.smem_per_block_optin - kernel.entry.static_smem
            if not 0 <= value <= limit:
                raise LaunchRejectedError(
                    f"CUDA_ERROR_INVALID_VALUE: {kernel.entry.name} requests {value} bytes of dynamic shared memory, "
                    f"{self._device.name} has {limit} besides the kernel's {kernel.entry.static_smem} static bytes"
                )
        kernel.attributes[attribute] = value

    def attribute(self, handle: int, attribute: int) -> int:
        """Return an attribute of a kernel. Raises HostSideError: it is unknown without ptxas."""
        kernel = self.kernel(handle)
        entry = kernel.entry
        known = {
            0: min(entry.most_threads or self._device.threads_per_block, threads_by_registers(entry, self._device)),
            1: entry.static_smem,
            2: 0,
            3: entry.local_bytes,
            4: entry.registers,
            _MAX_DYNAMIC_SMEM: _DEFAULT_DYNAMIC_SMEM,
        }
        value = kernel.attributes.get(attribute, known.get(attribute, 0))
        if value is None:
            what = {3: "bytes of local memory", 4: "registers"}[attribute]
            raise HostSideError(
                f"the {what} of {entry.name} are unknown: it was loaded as PTX, which no ptxas has compiled; "
                "load the CUBIN"
            )
        return value

    def launch(
        self,
        handle: int,
        *,
        grid: Dim3,
        block: Dim3,
        dynamic_smem: int,
        stream: int,
        params: Sequence[bytes],
        attributes: Mapping[int, bytes] | None = None,
        cooperative: bool = False,
        without_ptx: bool = False,
    ) -> None:
        """Launch a kernel.

        ``without_ptx`` permits one whose PTX is unknown, which can be recorded but not simulated.

        Raises:
            LaunchRejectedError: a driver would refuse it.
            HostSideError: its PTX is unknown.
        """
        kernel = self.kernel(handle)
        attributes = {**(attributes or {}), **({int(LaunchAttribute.COOPERATIVE): _ON} if cooperative else {})}
        if kernel.image.ptx is None and not without_ptx:
            raise HostSideError(
                f"{kernel.entry.name} was loaded from a CUBIN whose PTX is unknown, and only PTX can be simulated: "
                "load PTX (nvcc -ptx, or NVRTC in this process)"
            )
        widths = [kernel.attributes.get(_CLUSTER_WIDTH + axis, 0) for axis in range(3)]
        if not any(widths):
            widths = list(kernel.cluster or widths)
        raw = attributes.get(LaunchAttribute.CLUSTER_DIMENSION)
        if raw:
            widths = list(memoryview(raw[:12]).cast("I"))
        launch = Launch(
            kernel=kernel.entry.name,
            grid=grid,
            block=block,
            cluster=(widths[0] or 1, widths[1] or 1, widths[2] or 1),
            dynamic_smem=dynamic_smem,
            stream=stream,
            params=kernel.meaningful(params),
            attributes=attributes,
            module=kernel.image,
            ordinal=next(self._launched),
        )
        check_launch(
            launch,
            kernel.entry,
            self._device,
            reserved=max(kernel.attributes.get(_MAX_DYNAMIC_SMEM, 0), _DEFAULT_DYNAMIC_SMEM - kernel.entry.static_smem),
            portable=not kernel.attributes.get(_NON_PORTABLE_CLUSTER),
        )
        self._side.launches(launch)

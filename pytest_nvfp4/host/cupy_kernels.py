"""``cupy.RawKernel`` and ``cupy.RawModule`` for tensors of torch; the rest of cupy needs a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.device_side import DeviceWork
from pytest_nvfp4.host.kernel_objects import Library, arguments, compiled, dims, stream_handle

_MAX_DYNAMIC_SMEM = 8


def _address(memory: Any) -> int:
    """Return the address of a pointer of cupy or ctypes."""
    found = getattr(memory, "ptr", None)
    found = getattr(memory, "value", memory) if found is None else found
    return int(found or 0)


def contents(library: Library, work: DeviceWork) -> Mapping[str, Any]:
    """Return the names of the module ``cupy``."""

    class MemoryPointer:
        """Device memory of a variable, with cupy's copies; ``ptr`` is its address. Sizes are in bytes."""

        def __init__(self, ptr: int, size: int) -> None:
            self.ptr = ptr
            self.mem = SimpleNamespace(ptr=ptr, size=size)
            self.device_id = 0

        def copy_from_host(self, mem: Any, size: int) -> None:
            """Copy from host memory, a ctypes pointer."""
            self._copy(self.ptr, _address(mem), size, waits=True)

        def copy_to_host(self, mem: Any, size: int) -> None:
            """Copy to host memory, a ctypes pointer."""
            self._copy(_address(mem), self.ptr, size, waits=True)

        def copy_from_device(self, src: Any, size: int) -> None:
            """Copy from device memory."""
            self._copy(self.ptr, _address(src), size, waits=False)

        def copy_from(self, mem: Any, size: int) -> None:
            """Copy from host or device memory."""
            (self.copy_from_device if hasattr(mem, "ptr") else self.copy_from_host)(mem, size)

        def memset(self, value: int, size: int) -> None:
            """Fill memory with a byte."""
            self._check(size)
            work.fill(self.ptr, bytes([value & 0xFF]), size, what="cupy's memset", stream=library.current())

        def _copy(self, to: int, source: int, size: int, *, waits: bool) -> None:
            self._check(size)
            work.copy(to, source, size, what="a copy of cupy", stream=library.current(), waits=waits)

        def _check(self, size: int) -> None:
            if size > self.mem.size:
                raise HostSideError(f"a copy of {size} bytes, and the variable has {self.mem.size}")

    class RawModule:
        """Kernels of a source, or of a file of PTX or CUBIN."""

        def __init__(
            self,
            *,
            code: str | None = None,
            path: str | None = None,
            options: Sequence[str] = (),
            backend: str = "nvrtc",
            translate_cucomplex: bool = False,
            enable_cooperative_groups: bool = False,
            name_expressions: Sequence[str] | None = None,
            jitify: bool = False,
        ) -> None:
            if (code is None) == (path is None):
                raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
            if backend != "nvrtc" or jitify or translate_cucomplex:
                raise HostSideError("cupy.RawModule: only backend='nvrtc' without jitify has a stand-in without a GPU")
            self.cooperative = enable_cooperative_groups
            self._names: Mapping[str, str] = {}
            if path is not None:
                with open(path, "rb") as file:  # noqa: PTH123 - as cupy opens it
                    data = file.read()
            else:
                assert code is not None
                target = [] if any("arch" in option for option in options) else [f"-arch=sm_{library.arch}"]
                made = compiled(
                    code, name="cupy.cu", options=[*options, *target], expressions=list(name_expressions or ())
                )
                data, self._names = made.ptx.encode(), made.names
            self._module = library.modules.load(data)

        def get_global(self, name: str) -> MemoryPointer:
            """Return the memory of a variable by its name, or its name expression."""
            found = library.modules.variable(self._module, self._names.get(name, name))
            return MemoryPointer(found.address, found.size)

        def get_function(self, name: str) -> RawKernel:
            """Return a kernel by its name, or its name expression."""
            handle = library.modules.find(self._module, self._names.get(name, name))
            return RawKernel(None, name, handle=handle, cooperative=self.cooperative)

    class RawKernel:
        """A kernel that is called with a grid, a block and its arguments."""

        def __init__(
            self,
            code: str | None,
            name: str,
            options: Sequence[str] = (),
            backend: str = "nvrtc",
            *,
            translate_cucomplex: bool = False,
            enable_cooperative_groups: bool = False,
            jitify: bool = False,
            handle: int | None = None,
            cooperative: bool = False,
        ) -> None:
            self.name = name
            self._cooperative = cooperative or enable_cooperative_groups
            if handle is None:
                module = RawModule(
                    code=code,
                    options=options,
                    backend=backend,
                    translate_cucomplex=translate_cucomplex,
                    jitify=jitify,
                    name_expressions=[name] if "<" in name else None,
                )
                handle = module.get_function(name)._handle
            self._handle: int = handle

        @property
        def max_dynamic_shared_size_bytes(self) -> int:
            """Dynamic shared memory for which the kernel is prepared."""
            return library.modules.attribute(self._handle, _MAX_DYNAMIC_SMEM)

        @max_dynamic_shared_size_bytes.setter
        def max_dynamic_shared_size_bytes(self, size: int) -> None:
            library.modules.set_attribute(self._handle, _MAX_DYNAMIC_SMEM, int(size))

        def compile(self, log_stream: Any = None) -> None:
            """Do nothing: it is compiled."""

        def __call__(
            self, grid: Any, block: Any, args: Sequence[Any], *, shared_mem: int = 0, stream: Any = None
        ) -> None:
            entry = library.modules.kernel(self._handle).entry
            sizes = [size for _, size in entry.params]
            library.modules.launch(
                self._handle,
                grid=dims(grid),
                block=dims(block),
                dynamic_smem=int(shared_mem),
                stream=stream_handle(stream, library.current()),
                params=arguments(list(args), sizes, kernel=self.name, integer_bytes=8),
                cooperative=self._cooperative,
            )

    def same(array: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return a tensor as it is: a kernel takes its address."""
        if not hasattr(array, "__cuda_array_interface__") and not hasattr(array, "__dlpack__"):
            raise HostSideError("cupy.asarray of host memory has no stand-in without a GPU: use torch's tensors")
        return array

    class Stream:
        """``cupy.cuda.ExternalStream``: a stream of another library."""

        def __init__(self, ptr: int = 0, *_: Any) -> None:
            self.ptr = int(ptr)

        def __enter__(self) -> Any:
            raise HostSideError("`with` a stream of cupy has no stand-in without a GPU: pass stream= to the kernel")

        def __exit__(self, *_: object) -> None: ...

    def get_current_stream() -> Stream:
        return Stream(library.current())

    cuda = SimpleNamespace(
        ExternalStream=Stream,
        get_current_stream=get_current_stream,
        Device=lambda *_: SimpleNamespace(use=lambda: None),
    )
    return {
        "RawKernel": RawKernel,
        "RawModule": RawModule,
        "from_dlpack": same,
        "asarray": same,
        "fromDlpack": same,
        "cuda": cuda,
        "__version__": "13.6.0",  # the first release for CUDA 13, the version of the modelled driver
    }

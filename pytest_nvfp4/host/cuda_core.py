"""``cuda.core``: programs, kernels and launches. The real package needs ``libcuda.so`` even to compile."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_nvfp4.driver.launches import HostSideError, LaunchAttribute
from pytest_nvfp4.driver.streams import Streams
from pytest_nvfp4.host.device_side import DeviceWork
from pytest_nvfp4.host.kernel_objects import Library, arguments, compiled, dims, stream_handle

_VALUE_BYTES = 64
_MAX_DYNAMIC_SMEM = 8
_FLAGS = {"use_fast_math": "--use_fast_math", "debug": "--device-debug", "lineinfo": "--generate-line-info"}


@dataclass
class ProgramOptions:
    """Options of a compile; those without an effect on the code's meaning are accepted."""

    name: str = "default_program"
    arch: str | None = None
    std: str | None = None
    include_path: str | Sequence[str] | None = None
    define_macro: Any = None
    undefine_macro: Any = None
    max_register_count: int | None = None
    use_fast_math: bool | None = None
    debug: bool | None = None
    lineinfo: bool | None = None
    ftz: bool | None = None
    prec_div: bool | None = None
    prec_sqrt: bool | None = None
    fma: bool | None = None
    device_code_optimize: bool | None = None
    relocatable_device_code: bool | None = None
    link_time_optimization: bool | None = None

    def options(self, arch: str) -> list[str]:
        """Return the options of NVRTC."""
        if self.relocatable_device_code or self.link_time_optimization:
            raise HostSideError("cuda.core links relocatable code with nvJitLink, which has no stand-in without a GPU")
        made = [f"--gpu-architecture={self.arch or f'sm_{arch}'}"]
        made += [f"--std={self.std}"] if self.std else []
        made += [f"-I{folder}" for folder in _listed(self.include_path)]
        made += [f"-D{name}" for name in _macros(self.define_macro)] + [
            f"-U{name}" for name in _listed(self.undefine_macro)
        ]
        made += [f"--maxrregcount={self.max_register_count}"] if self.max_register_count else []
        made += [flag for name, flag in _FLAGS.items() if getattr(self, name)]
        known = {"ftz": "--ftz", "prec_div": "--prec-div", "prec_sqrt": "--prec-sqrt", "fma": "--fmad"}
        return made + [
            f"{flag}={str(getattr(self, name)).lower()}"
            for name, flag in known.items()
            if getattr(self, name) is not None
        ]


def _listed(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else [str(each) for each in value]


def _macros(value: Any) -> list[str]:
    if isinstance(value, tuple) and len(value) == 2:
        return [f"{value[0]}={value[1]}"]
    return [
        each if isinstance(each, str) else f"{each[0]}={each[1]}"
        for each in ([value] if isinstance(value, str) else value or ())
    ]


@dataclass
class LaunchConfig:
    """A launch's shape."""

    grid: Any = None
    cluster: Any = None
    block: Any = None
    shmem_size: int | None = None
    cooperative_launch: bool | None = False
    stream: Any = None


def contents(library: Library, work: DeviceWork, streams: Streams) -> Mapping[str, Any]:
    """Return the names of the module ``cuda.core``."""
    modules, handles = library.modules, itertools.count(0x5C0000000001)

    class Stream:
        """A stream."""

        def __init__(self, handle: int) -> None:
            self.handle = handle

        @classmethod
        def from_handle(cls, handle: int) -> Stream:
            """Return a stream of another library."""
            return cls(int(handle))

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.handle

        def sync(self) -> None:
            """Wait for its work."""
            streams.synchronize(self.handle)

        def close(self) -> None:
            """Do nothing."""

    class Buffer:
        """Device memory."""

        def __init__(self, size: int) -> None:
            self.size = size
            self.handle = work.allocate(size)

        def close(self, stream: Any = None) -> None:
            """Free it."""
            work.free(int(self.handle), None if stream is None else stream_handle(stream, 0))
            self.handle = 0

    class Device:
        """The device."""

        def __init__(self, device_id: int | None = 0) -> None:
            if device_id:
                raise HostSideError(f"device {device_id} was requested, only device 0 is simulated")
            self.device_id = 0
            self.name = library.model.name
            self.arch = library.arch
            major, minor = library.model.capability
            self.compute_capability = _Capability((major, minor))
            self.default_stream = Stream(0)
            self.properties = SimpleNamespace(
                **{name.lower(): value for name, value in library.model.attributes().items()}
            )

        def set_current(self, *_: Any) -> None:
            """Do nothing: there is one device."""

        def create_stream(self, obj: Any = None, options: Any = None) -> Stream:
            """Return a new stream, or that of another library."""
            del options
            return Stream(stream_handle(obj, 0) if obj is not None else streams.add(next(handles), blocking=False))

        def allocate(self, size: int, stream: Any = None) -> Buffer:
            """Allocate memory."""
            del stream
            return Buffer(size)

        def sync(self) -> None:
            """Wait for all work."""
            streams.synchronize_device()

    class Kernel:
        """A kernel."""

        def __init__(self, handle: int) -> None:
            self.handle = self._handle = handle
            self.attributes = SimpleNamespace(
                max_dynamic_shared_size_bytes=lambda *_: modules.attribute(handle, _MAX_DYNAMIC_SMEM),
                shared_size_bytes=lambda *_: modules.attribute(handle, 1),
                num_regs=lambda *_: modules.attribute(handle, 4),
                max_threads_per_block=lambda *_: modules.attribute(handle, 0),
            )

    class ObjectCode:
        """A module."""

        def __init__(self, code: bytes, names: Mapping[str, str], kind: str) -> None:
            self.code = code
            self.code_type = self._code_type = kind
            self._names = names
            self._module: int | None = None

        @property
        def handle(self) -> int:
            """The module for the functions of ``cuda.bindings.driver``, such as ``cuLibraryGetGlobal``."""
            if self._module is None:
                self._module = modules.load(self.code)
            return self._module

        @staticmethod
        def from_ptx(module: Any, *, name: str = "", symbol_mapping: Mapping[str, str] | None = None) -> ObjectCode:
            """Return a module of PTX, or of a file."""
            del name
            return ObjectCode(_read(module), symbol_mapping or {}, "ptx")

        @staticmethod
        def from_cubin(module: Any, *, name: str = "", symbol_mapping: Mapping[str, str] | None = None) -> ObjectCode:
            """Return a module of a CUBIN, or of a file."""
            del name
            return ObjectCode(_read(module), symbol_mapping or {}, "cubin")

        def get_kernel(self, name: str | bytes) -> Kernel:
            """Return a kernel by its name, or its name expression."""
            text = name.decode() if isinstance(name, bytes) else name
            return Kernel(modules.find(self.handle, self._names.get(text, text)))

    class Program:
        """Source to compile."""

        def __init__(self, code: str, code_type: str, options: Any = None) -> None:
            if code_type.lower() not in ("c++", "ptx"):
                raise HostSideError(f"a program of type {code_type!r} has no stand-in without a GPU: pass c++ or ptx")
            self._code, self._kind = code, code_type.lower()
            given = options or {}
            unknown = set(given) - {each.name for each in fields(ProgramOptions)} if isinstance(given, dict) else set()
            if unknown:
                raise HostSideError(f"ProgramOptions has no stand-in for {min(unknown)}")
            self._options = ProgramOptions(**given) if isinstance(given, dict) else given

        def compile(self, target_type: str, name_expressions: Sequence[str] = (), logs: Any = None) -> ObjectCode:
            """Compile it for ``ptx`` or ``cubin``."""
            if self._kind == "ptx":
                return ObjectCode(self._code.encode(), {}, "ptx")
            if target_type not in ("ptx", "cubin"):
                raise HostSideError(f"a compile for {target_type!r} has no stand-in without a GPU: pass ptx or cubin")
            names = [each.decode() if isinstance(each, bytes) else each for each in name_expressions]
            options = self._options.options(library.arch)
            made = compiled(self._code, name=f"{self._options.name}.cu", options=options, expressions=names)
            if logs is not None:
                logs.write(made.log)
            return ObjectCode(made.cubin if target_type == "cubin" else made.ptx.encode(), made.names, target_type)

        def close(self) -> None:
            """Do nothing."""

    def launch(stream: Any, config: LaunchConfig, kernel: Kernel, *values: Any) -> None:
        """Launch a kernel."""
        entry = modules.kernel(kernel.handle).entry
        grid, cluster = dims(config.grid), dims(config.cluster) if config.cluster else (1, 1, 1)
        attributes = {}
        if config.cluster:  # the grid counts clusters
            grid = (grid[0] * cluster[0], grid[1] * cluster[1], grid[2] * cluster[2])
            raw = b"".join(size.to_bytes(4, "little") for size in cluster)
            attributes[int(LaunchAttribute.CLUSTER_DIMENSION)] = raw.ljust(_VALUE_BYTES, b"\0")
        modules.launch(
            kernel.handle,
            grid=grid,
            block=dims(config.block),
            dynamic_smem=int(config.shmem_size or 0),
            stream=stream_handle(stream, 0),
            params=arguments(values, [size for _, size in entry.params], kernel=entry.name, integer_bytes=8),
            attributes=attributes,
            cooperative=bool(config.cooperative_launch),
        )

    names = (Device, Stream, Buffer, Program, ProgramOptions, ObjectCode, Kernel, LaunchConfig)
    return {**{each.__name__: each for each in names}, "launch": launch, "__version__": "0.4.0"}


class _Capability(tuple[int, int]):
    """A compute capability with names."""

    __slots__ = ()

    @property
    def major(self) -> int:
        """First number."""
        return self[0]

    @property
    def minor(self) -> int:
        """Second number."""
        return self[1]


def _read(module: Any) -> bytes:
    if isinstance(module, str | Path):
        text = str(module)
        return Path(text).read_bytes() if "\n" not in text and len(text) < 4096 else text.encode()
    return bytes(module)

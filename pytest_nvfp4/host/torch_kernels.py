"""``torch.cuda._compile_kernel``: kernels that torch compiles with NVRTC and launches through ``libcuda.so``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_nvfp4.host.kernel_objects import Library, arguments, compiled, dims, stream_handle

_MAX_DYNAMIC_SMEM = 8


class CompiledKernel:
    """What ``_compile_kernel`` returns."""

    def __init__(self, library: Library, handle: int) -> None:
        self._library = library
        self._handle = handle

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Prepare the kernel for an amount of dynamic shared memory."""
        self._library.modules.set_attribute(self._handle, _MAX_DYNAMIC_SMEM, int(shared_mem_bytes))

    def __call__(
        self,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (1, 1, 1),
        args: Sequence[Any] | None = None,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """Launch the kernel."""
        for value in args or ():
            if getattr(getattr(value, "device", None), "type", "cuda") == "cpu":
                raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
        entry = self._library.modules.kernel(self._handle).entry
        sizes = [size for _, size in entry.params]
        self._library.modules.launch(
            self._handle,
            grid=dims(tuple(grid)),
            block=dims(tuple(block)),
            dynamic_smem=int(shared_mem),
            stream=stream_handle(stream, self._library.current()),
            params=arguments(list(args or ()), sizes, kernel=entry.name, integer_bytes=4),
        )


def compile_kernel(library: Library) -> Callable[..., CompiledKernel]:
    """Return the function for a device."""

    def compile_it(
        kernel_source: str,
        kernel_name: str,
        compute_capability: str | None = None,
        cuda_include_dirs: Sequence[str] | None = None,
        nvcc_options: Sequence[str] | None = None,
    ) -> CompiledKernel:
        options = [f"--gpu-architecture=sm_{compute_capability or library.arch}"]
        options += [f"-I{folder}" for folder in cuda_include_dirs or ()]
        made = compiled(
            kernel_source,
            name=f"{kernel_name.partition('<')[0]}.cu",
            options=[*options, *(nvcc_options or ())],
            expressions=[kernel_name],
        )
        modules = library.modules
        return CompiledKernel(library, modules.find(modules.load(made.ptx.encode()), made.names[kernel_name]))

    return compile_it

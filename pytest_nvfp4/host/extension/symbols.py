"""The functions of CUDA that stand-ins define for an extension, and those that an extension needs beyond them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

SOURCES: Final = tuple(Path(__file__).with_name(name) for name in ("standins.c", "properties.c"))
"""The definitions, in C."""

FORWARDED: Final = (
    *("__cudaRegisterFatBinary", "__cudaRegisterFatBinaryEnd", "__cudaRegisterFunction"),
    *("__cudaRegisterVar", "cudaLaunchKernelExC", "cudaFuncSetAttribute", "cudaFuncGetAttributes"),
    *("cudaFuncSetCacheConfig", "cudaOccupancyMaxActiveBlocksPerMultiprocessor"),
    *("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cudaOccupancyMaxActiveClusters"),
    *("cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaDeviceGetAttribute", "cudaDeviceSynchronize"),
    *("cudaDriverGetVersion", "cudaRuntimeGetVersion", "cudaGetLastError", "cudaPeekAtLastError"),
    *("cudaGetErrorString", "cudaGetErrorName", "cudaMalloc", "cudaMallocAsync", "cudaFree", "cudaFreeAsync"),
    *("cudaMemcpy", "cudaMemcpyAsync", "cudaMemset", "cudaMemsetAsync", "cudaMemGetInfo"),
    *("cudaMemcpyToSymbol", "cudaMemcpyToSymbolAsync", "cudaMemcpyFromSymbol", "cudaMemcpyFromSymbolAsync"),
    *("cudaGetSymbolAddress", "cudaGetSymbolSize"),
    *("cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority", "cudaStreamDestroy"),
    *("cudaStreamSynchronize", "cudaStreamQuery", "cudaStreamWaitEvent", "cudaStreamIsCapturing"),
    *("cudaEventCreate", "cudaEventCreateWithFlags", "cudaEventDestroy", "cudaEventRecord", "cudaEventSynchronize"),
    *("cudaEventQuery", "cudaEventElapsedTime", "cudaDeviceSetLimit", "cudaProfilerStart", "cudaProfilerStop"),
    *("cuInit", "cuDeviceGet", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDriverGetVersion", "cuCtxGetCurrent"),
    *("cuCtxSetCurrent", "cuGetErrorString", "cuGetErrorName", "cuTensorMapEncodeTiled", "nvfp4_device_name"),
)
"""Functions whose arguments are passed on."""
INTERNAL: Final = {
    "NVFP4_LAUNCH": "cudaLaunchKernelExC",
    "NVFP4_SET_DEVICE": "cudaSetDevice",
    "NVFP4_SYNCHRONIZE": "cudaDeviceSynchronize",
    "NVFP4_SYNCHRONIZE_STREAM": "cudaStreamSynchronize",
    "NVFP4_CURRENT": "the current stream",
    "NVFP4_SET_CURRENT": "torch's choice of a stream",
    "NVFP4_NEW_STREAM": "a new stream",
    "NVFP4_NOT_FOUND": "cudaGetDriverEntryPoint",
    "NVFP4_CHECK": "C10_CUDA_CHECK",
}
"""What other definitions call, by the name of its number in their source."""
TABLE: Final = tuple(dict.fromkeys((*FORWARDED, *INTERNAL.values())))
"""Names of all entries of the table, in order."""

HIDDEN: Final = "{ local: _ZN3c104cuda20CUDACachingAllocator*; };\n"
"""The version script of the linker: inline functions that an extension does not export, so that those which it does not
use either are left out, with what they need."""

_CUDA: Final = re.compile(
    r"(?:__cuda|cuda|cu|cublas|cublasLt|cudnn|cusparse|cusolver|curand|cufft|nvrtc|nvJitLink|nccl|nvml|nvshmem)[A-Z_]\w*"
    r"|_ZNK?(?:3c10|2at|5torch)\w*4cuda\w*|aoti_torch_\w*cuda\w*"
)


def definitions() -> dict[str, str]:
    """Return the macros with which the definitions are compiled."""
    numbers = {name: number for number, name in enumerate(TABLE)}
    driver = [name for name in FORWARDED if re.match("cu[A-Z]", name)]
    return {
        "NVFP4_FORWARDED": " ".join(f"FORWARD({numbers[name]}, {name})" for name in FORWARDED),
        "NVFP4_DRIVER": "".join(f'{{"{name}", (void *){name}}},' for name in driver),
        **{macro: str(numbers[name]) for macro, name in INTERNAL.items()},
    }


def unanswered(library: Path) -> list[str]:
    """Return the functions of CUDA's and torch's libraries that a linked extension needs and nothing stands in for."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--format=posix", str(library)],
        check=True,
        capture_output=True,
        text=True,
    )
    names = [line.split()[0].partition("@")[0] for line in listed.stdout.splitlines() if line.strip()]
    return list(_readable(list(filter(is_refused, names))))


def is_refused(name: str) -> bool:
    """Return whether an undefined symbol is one of a library that must not be reached."""
    return _CUDA.fullmatch(name) is not None


def _readable(names: Sequence[str]) -> Iterator[str]:
    if names:
        shown = subprocess.run(["c++filt", *names], check=True, capture_output=True, text=True)
        yield from shown.stdout.splitlines()

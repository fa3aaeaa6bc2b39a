"""NVRTC, the compiler of CUDA source that is a library: options that keep lines, headers, and PTX beside each CUBIN.

NVRTC needs neither a GPU nor a C++ compiler, so that host code calls the real one. What changes are the options (a line
table, include folders of the installed wheels, the architecture that ptxas compiles for instead of the virtual one, so
that a CUBIN with its registers exists beside the PTX) and the source (``source_lines``).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.host.cuda_headers import standard_headers

_VIRTUAL: Final = re.compile(r"\bcompute_(\d+[af]?)\b")
_SHORT: Final = 200
_DRIVER: Final = "#pragma once\n#include <cuda.h>\n"
_RUNTIME: Final = f"""{_DRIVER}#if __has_include(<cuda_device_runtime_api.h>)
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include <cuda_device_runtime_api.h>
#endif
"""
HOST_HEADERS: Final = {
    "cuda.h": "#pragma once\n"
    "typedef struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; } CUtensorMap;\n",
    "cudaTypedefs.h": _DRIVER,
    "cuda_runtime.h": _RUNTIME,
    "cuda_runtime_api.h": _RUNTIME,
}
"""Headers of the host's functions, without these, for a file that is compiled by itself.

Device code uses a type of the driver's, which libcu++ declares, too, and the runtime's functions of the device.
"""


class CompileError(RuntimeError):
    """NVRTC refused a source; the message is its log."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What NVRTC has made of a source.

    Attributes:
        ptx: The PTX.
        cubin: The CUBIN; empty if ptxas did not run.
        names: Lowered names by the name expressions that were asked for.
        log: Warnings.
    """

    ptx: str
    cubin: bytes
    names: dict[str, str]
    log: str


def include_folders() -> list[str]:
    """Return the folders of CUDA's headers in the installed wheels."""
    found: list[Path] = []
    for package in ("nvidia", "cuda", "triton"):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            root = Path(place)
            found += [*root.glob("cu*/include"), *root.glob("*/include"), *root.glob("backends/nvidia/include")]
    folders = [folder for folder in dict.fromkeys(found) if (folder / "cuda_fp16.h").is_file()]
    nested = [folder / "cccl" for folder in folders if (folder / "cccl" / "cuda" / "std").is_dir()]
    return [str(folder) for folder in (*folders, *nested)]


def options_for(options: Sequence[str], *, arch: str | None = None, ptxas: bool = True) -> list[str]:
    """Return the options with those that this module adds.

    Args:
        options: The author's.
        arch: Architecture if they name none; None for NVRTC's default.
        ptxas: Whether to compile for a real architecture where they name a virtual one.
    """
    made = [
        _VIRTUAL.sub(r"sm_\1", option) if ptxas and _is_arch(options, at) else option
        for at, option in enumerate(options)
    ]
    if arch is not None and not any(_names_arch(option) for option in options):
        made.append(f"--gpu-architecture={arch}")
    if not any(option in ("-lineinfo", "--generate-line-info", "-G", "--device-debug") for option in options):
        made.append("-lineinfo")
    return [*made, *(f"-I{folder}" for folder in include_folders())]


def _names_arch(option: str) -> bool:
    return option.startswith(("-arch", "--gpu-architecture"))


def _is_arch(options: Sequence[str], at: int) -> bool:
    return _names_arch(options[at]) or (at > 0 and options[at - 1] in ("-arch", "--gpu-architecture"))


def compile_source(
    source: str,
    *,
    name: str,
    options: Sequence[str],
    expressions: Sequence[str] = (),
    headers: dict[str, str] | None = None,
) -> Compiled:
    """Compile CUDA source with the real functions of NVRTC.

    Raises:
        CompileError: NVRTC refused the source or an option.
        ImportError: cuda-bindings or NVRTC is not installed.
    """
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    given = {**standard_headers(), **(headers or {})}
    status, program = nvrtc.nvrtcCreateProgram(
        source.encode(),
        name.encode(),
        len(given),
        [text.encode() for text in given.values()],
        [key.encode() for key in given],
    )
    _check(nvrtc, status, "nvrtcCreateProgram")
    try:
        for expression in expressions:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression.encode())[0], expression)
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace").strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(log or f"NVRTC: {status.name}")
        names = {}
        for expression in expressions:
            status, lowered = nvrtc.nvrtcGetLoweredName(program, expression.encode())
            _check(nvrtc, status, expression)
            names[expression] = lowered.decode()
        return Compiled(
            ptx=read(nvrtc, program, "PTX").rstrip(b"\0").decode(),
            cubin=read(nvrtc, program, "CUBIN"),
            names=names,
            log=log,
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def read(nvrtc: Any, program: Any, what: str) -> bytes:
    """Return the PTX, CUBIN or ProgramLog of a program; empty if it has none."""
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS or size <= 1:
        return b""
    data = b" " * size  # at least two: Python shares every bytes object of one, which must not be written
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    return data if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else b""


def _check(nvrtc: Any, status: Any, what: str) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {status.name}: {what[:_SHORT]}")


def error_lines(log: str) -> Iterator[tuple[str, int, str]]:
    """Yield the file, line and message of each error in a log."""
    for match in ERROR.finditer(log):
        yield match["file"], int(match["line"]), match["message"]


ERROR: Final = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<message>.*)$", re.MULTILINE
)
"""An error in NVRTC's log."""

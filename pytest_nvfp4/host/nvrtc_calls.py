"""Functions of ``cuda.bindings.nvrtc`` around the real ones, for host code that compiles CUDA source itself.

Host code gets what it asked for. Beside that, the PTX of each CUBIN is noted for the time when it is loaded, the code
is written where that of the DSL is written, and the log of a failed compile goes to standard error, because host code
may report no more than a number.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_nvfp4.driver.user_line import UserLine, user_line
from pytest_nvfp4.host import nvrtc
from pytest_nvfp4.host.cuda_headers import standard_headers
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.source_lines import with_lines


class NvrtcCalls:
    """Installs and removes the functions. ``modules`` notes the PTX of CUBINs."""

    def __init__(self, modules: LoadedModules) -> None:
        self._modules = modules
        self._saved: list[tuple[ModuleType, str, Any]] = []
        self._written = 0

    def install(self) -> None:
        """Replace the functions, if NVRTC's bindings are installed."""
        try:
            bindings = importlib.import_module("cuda.bindings.nvrtc")
        except ImportError:
            return
        wrappers = {
            "nvrtcCreateProgram": self._create,
            "nvrtcCompileProgram": self._compile,
            "nvrtcGetProgramLog": _get_log,
        }
        for name, wrap in wrappers.items():
            original = getattr(bindings, name)
            self._saved.append((bindings, name, original))
            setattr(bindings, name, wrap(bindings, original))

    def remove(self) -> None:
        """Restore the real functions."""
        while self._saved:
            module, name, value = self._saved.pop()
            setattr(module, name, value)

    def _create(self, _bindings: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def create(src: Any, name: Any, count: int, texts: Any, names: Any) -> Any:
            if isinstance(src, bytes | bytearray):
                label = bytes(name or b"").decode("utf-8", "replace") or "source.cu"
                text = bytes(src).rstrip(b"\0").decode("utf-8", "replace")
                src = with_lines(text, _files(user_line(), label), name=label).encode()
            headers = dict(zip(list(names or ())[:count], list(texts or ())[:count], strict=True))
            own = {key.encode(): text.encode() for key, text in standard_headers().items()}
            headers = {**own, **headers}
            return original(src, name, len(headers), list(headers.values()), list(headers))

        return create

    def _compile(self, bindings: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_it(program: Any, count: int, options: Any) -> Any:
            given = [bytes(option).decode() for option in list(options or ())[:count]]
            made = [option.encode() for option in nvrtc.options_for(given)]
            result = original(program, len(made), made)
            if result[0] != bindings.nvrtcResult.NVRTC_SUCCESS:
                log = nvrtc.read(bindings, program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
                sys.stderr.write(f"{log.rstrip()}\n")
                return result
            self._note(
                nvrtc.read(bindings, program, "PTX").rstrip(b"\0").decode(), nvrtc.read(bindings, program, "CUBIN")
            )
            return result

        return compile_it

    def _note(self, ptx: str, cubin: bytes) -> None:
        if cubin and ptx:
            self._modules.compiled(cubin, ptx)
        folder = os.environ.get("CUTE_DSL_DUMP_DIR")
        if not folder or not Path(folder).is_dir():
            return
        self._written += 1
        for suffix, data in (("ptx", ptx.encode()), ("cubin", cubin)):
            if data:
                (Path(folder) / f"nvrtc_{self._written}.{suffix}").write_bytes(data)


def _get_log(bindings: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def get_log(program: Any, log: Any) -> Any:
        # An empty log is one NUL. Host code as in NVIDIA's examples passes `b" " * 1` for it, which is the object
        # that Python shares for every blank.
        if isinstance(log, bytes) and len(log) <= 1:
            return (bindings.nvrtcResult.NVRTC_SUCCESS,)
        return original(program, log)

    return get_log


def _files(line: UserLine | None, label: str) -> list[str]:
    """Return the files in which a source may stand: one of its own name, and those of the lines that compile it."""
    files = [str(Path(label).absolute())] if Path(label).is_file() else []
    while line is not None:
        files.append(line.file)
        line = line.caller
    return list(dict.fromkeys(files))

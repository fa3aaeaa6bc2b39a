"""The compilers of an extension: nvcc, of a toolkit or of the wheels of ``pytest-nvfp4[cuda]``, and one for C++."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.driver.launches import NoCompilerError


@dataclass(frozen=True, slots=True)
class Compilers:
    """Programs, and folders of headers.

    Attributes:
        nvcc: nvcc; None for an extension without CUDA source.
        cxx: The compiler for C++.
        headers: Folders of headers of CUDA, torch and Python.
        libraries: Folders of torch's libraries.
    """

    nvcc: Path | None
    cxx: str
    headers: tuple[Path, ...]
    libraries: tuple[Path, ...]

    def versions(self) -> tuple[str, ...]:
        """Return what the compilers say of themselves, without their places."""
        programs = [str(program) for program in (self.nvcc, self.cxx) if program is not None]
        return tuple(_version(program) for program in programs)


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def find(*, cuda: bool, what: str = "this extension") -> Compilers:
    """Return the installed compilers. ``what`` is what they compile, for messages.

    Raises:
        NoCompilerError: one is missing.
    """
    nvcc = next(_nvccs(), None) if cuda else None
    if cuda and nvcc is None:
        raise NoCompilerError(
            f"unavailable, because nvcc is not installed, which compiles {what}: pip install "
            "'pytest-nvfp4[cuda]', or install the CUDA toolkit and set CUDA_HOME"
        )
    cxx = os.environ.get("CXX") or next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)
    if cxx is None or shutil.which(cxx) is None:
        raise NoCompilerError(
            f"unavailable, because {cxx or 'a compiler for C++'} is not installed, which compiles the host code of "
            f"{what}: install g++ (apt-get install g++, dnf install gcc-c++)"
        )
    spec = importlib.util.find_spec("torch")
    torch = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("no-torch")
    headers = [torch / "include", torch / "include/torch/csrc/api/include", Path(sysconfig.get_path("include"))]
    headers += _of_toolkit(nvcc) if nvcc is not None else ()
    headers += [folder / "include" for folder in _wheels()]
    # Since version 13, the headers of the C++ library for CUDA have a folder of their own.
    headers += [folder / "cccl" for folder in list(headers)]
    return Compilers(nvcc, cxx, tuple(dict.fromkeys(filter(Path.is_dir, headers))), (torch / "lib",))


def _nvccs() -> Iterator[Path]:
    places = [Path(home) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    places += [folder / "bin" for folder in _wheels()]
    if (found := shutil.which("nvcc")) is not None:
        places.append(Path(found).resolve().parent)
    places.append(Path("/usr/local/cuda/bin"))
    yield from (place / "nvcc" for place in places if os.access(place / "nvcc", os.X_OK))


def _of_toolkit(nvcc: Path) -> Iterator[Path]:
    """Yield folders of headers in the search path of nvcc; a program of this name may call another one."""
    command = [str(nvcc), "--dryrun", "-x", "cu", "-c", os.devnull]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    options = "".join(re.findall(r"#\$ .*INCLUDES=.*", shown))
    for option in re.findall(r'"?-(?:I|isystem )\s*"?([^"\s]+)', options):
        yield Path(os.path.normpath(option))


def _wheels() -> list[Path]:
    """Return the folders of NVIDIA's wheels: one for each component, or since CUDA 13 one for all."""
    spec = importlib.util.find_spec("nvidia")
    roots = map(Path, spec.submodule_search_locations or ()) if spec is not None else ()
    found = [folder for root in roots for folder in sorted(root.iterdir()) if (folder / "include").is_dir()]
    return sorted(found, key=lambda folder: folder.name != "cu13")

"""Compile and link an extension; all its sources at once, behind the wall of the process that imports it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_nvfp4.cores import cores
from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.extension import flags, symbols
from pytest_nvfp4.host.extension.compilers import Compilers

_STANDARD: Final = "-std=c++20"
_REQUIRED: Final = re.compile(r"#error C\+\+(\d\d) or later compatible compiler is required")
_LONGEST_S: Final = 1800.0
_MESSAGE: Final = re.compile(
    r"^(?P<file>[^\s:(][^:(\n]*?)[:(](?P<line>\d+)(?:[:)]\d*:?)?\s*:?\s*(?:fatal )?error\b[^:\n]*:?\s*(?P<text>.*)$",
    re.MULTILINE,
)
_MOST: Final = 6000
"""Characters of a compiler's messages that are reported."""
_VARIABLES: Final = (
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
    *("COMPILER_PATH", "GCC_EXEC_PREFIX"),
)
"""Variables that change what nvcc and GCC build, which a kernel may set."""
_TORCH_NAMES: Final = ("c10", "torch_cpu", "torch", "torch_python", "c10_cuda")


class CompileError(HostSideError):
    """A compiler refused a source, or the linker an extension.

    Attributes:
        filename, lineno: The place of the first error, if the compiler names one.
    """

    def __init__(self, message: str, filename: str | None = None, lineno: int | None = None) -> None:
        super().__init__(message)
        self.filename = filename
        self.lineno = lineno


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What is built.

    Attributes:
        name: Name of the module.
        sources: Files of C++, and of CUDA with the suffix ``.cu``.
        cxx, nvcc, linker: The author's options.
        headers: The author's folders of headers.
        arch: The architecture of the device, such as ``sm_100a``.
        torch: Whether it is an extension of torch; otherwise a plain shared library.
    """

    name: str
    sources: tuple[Path, ...]
    cxx: tuple[str, ...] = ()
    nvcc: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    arch: str = "sm_100a"
    torch: bool = True

    @property
    def cuda(self) -> bool:
        """Whether it has CUDA source."""
        return any(source.suffix == ".cu" for source in self.sources)

    def of(self, sources: tuple[Path, ...], headers: tuple[str, ...]) -> Extension:
        """Return this extension with other sources and folders of headers."""
        return dataclasses.replace(self, sources=sources, headers=headers)

    def key(self, base: Path, compilers: Compilers) -> str:
        """Return the digest of all that is known before a compiler runs, wherever the author's folder lies."""
        digest = hashlib.sha256()
        parts = [self.name, self.arch, sys.version, *self.cxx, "", *self.nvcc, "", *self.linker, "", *self.headers]
        parts += [os.environ.get(name, "") for name in _VARIABLES]
        parts += compilers.versions()
        parts += [getattr(importlib.import_module("torch"), "__version__", "")] if self.torch else []
        for part in parts:
            digest.update(hashlib.sha256(part.replace(str(base), "BASE").encode()).digest())
        for source in (*self.sources, *symbols.SOURCES, Path(flags.__file__), Path(__file__)):
            digest.update(hashlib.sha256(source.read_bytes()).digest())
        return digest.hexdigest()[:40]


def build(extension: Extension, compilers: Compilers, folder: Path) -> tuple[Path, list[Path]]:
    """Build an extension in a folder; return the library, and the files that were read.

    Raises:
        CompileError: its source is wrong.
        HostSideError: it calls a function of CUDA's libraries that has no stand-in.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps = [_Step(command, output) for command, output in _commands(extension, compilers, folder)]
    until = time.monotonic() + _LONGEST_S
    with ThreadPoolExecutor(max(1, min(cores(), len(steps)))) as pool:
        list(pool.map(lambda step: step.run(until), steps))
    library = folder / f"{extension.name}.so"
    link = [compilers.cxx, "-shared", *(str(step.output) for step in steps), "-o", str(library)]
    # The definitions in the extension take precedence over those of libraries that the process has loaded already.
    link += ["-Wl,-Bsymbolic-functions", "-Wl,--unresolved-symbols=ignore-all", "-Wl,--no-as-needed"]
    (hidden := folder / "nvfp4-hidden.map").write_text(symbols.HIDDEN)
    link += ["-Wl,--gc-sections", f"-Wl,--version-script={hidden}"]
    if extension.torch:
        link += [f"-L{place}" for place in compilers.libraries]
        link += [f"-l{name}" for name in _TORCH_NAMES if (compilers.libraries[0] / f"lib{name}.so").exists()]
    link += [*flags.for_linking(extension.linker), "-lpthread", "-ldl"]
    _Step(link, library).run(until)
    if missing := symbols.unanswered(library):
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise HostSideError(
            f"the extension {extension.name} was not imported: it calls {shown}, which "
            f"{'has' if len(missing) == 1 else 'have'} no stand-in without a GPU; launch kernels of its own instead, "
            "or run it on a GPU"
        )
    linked = [path for option in extension.linker if (path := Path(option).absolute()).is_file()]
    return library, sorted({*_read(folder), *linked})


def _commands(extension: Extension, compilers: Compilers, folder: Path) -> Iterator[tuple[list[str], Path]]:
    """Yield the command for each object, the longest ones first."""
    system = [argument for place in compilers.headers for argument in ("-isystem", str(place))]
    own = [f"-I{place}" for place in extension.headers]
    defined = [f"-DTORCH_EXTENSION_NAME={extension.name}", "-DTORCH_API_INCLUDE_EXTENSION_H"] if extension.torch else []
    torch = importlib.import_module("torch.utils.cpp_extension") if extension.torch else None
    least = _least_standard(compilers.headers) if extension.torch else 0
    for number, source in sorted(enumerate(extension.sources), key=lambda each: each[1].suffix != ".cu"):
        output = folder / f"{number}-{source.stem}.o"
        noted = ["-MD", "-MF", f"{output}.d"]
        if source.suffix == ".cu":
            options = flags.for_device(extension.nvcc, extension.arch)
            if torch is not None:
                options = [*torch.COMMON_NVCC_FLAGS, *options]
            command = [str(compilers.nvcc), "-ccbin", compilers.cxx, *own, *system, *defined, *options]
            command += ["--compiler-options", "-fPIC,-O0", "-diag-suppress", "177", *flags.ANY_TOOLKIT]
        else:
            command = [compilers.cxx, *own, *system, *defined, "-fPIC", *flags.for_host(extension.cxx), "-O0", "-w"]
        command = flags.of_standard(command, least)
        standard = [] if any("-std" in option for option in command) else [_STANDARD]
        yield [*command, *standard, *noted, "-c", str(source), "-o", str(output)], output
    macros = [f"-D{name}={text}" for name, text in symbols.definitions().items()]
    for source in symbols.SOURCES[: 2 if extension.cuda else 1]:
        output = folder / f"nvfp4-{source.stem}.o"
        # Hidden: libraries that are loaded later must not find these definitions (torch loads some for all others).
        options = [*system, *macros, "-fPIC", "-fvisibility=hidden", "-O1", "-w"]
        yield [compilers.cxx, "-x", "c", *options, "-c", str(source), "-o", str(output)], output


def _least_standard(headers: Sequence[Path]) -> int:
    """Return the standard of C++ that torch's headers ask for, such as 20; 0 if they name none."""
    for place in headers:
        header = place / "ATen" / "ATen.h"
        if header.is_file():
            asked = _REQUIRED.search(header.read_text(errors="replace"))
            return int(asked[1]) if asked else 0
    return 0


@dataclass(frozen=True, slots=True)
class _Step:
    command: list[str]
    output: Path

    def run(self, until: float) -> None:
        """Run a command. A process that has failed, or whose parent is ended, leaves no compiler behind."""
        try:
            done = subprocess.run(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, until - time.monotonic()),
                env={**os.environ, "LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HostSideError(f"{Path(self.command[0]).name} took longer than {_LONGEST_S:.0f} s") from None
        if not done.returncode:
            return
        log = done.stdout.decode(errors="replace")
        if flags.LINES not in self.command or not flags.breaks_assembly(log):
            raise _refused(Path(self.command[0]).name, done.returncode, log)
        warnings.warn(
            f"{self.output.stem.partition('-')[2]}.cu is built without lines, so that findings have those of its PTX: "
            "with them nvcc writes PTX that ptxas refuses, because an instruction in the text of an asm statement goes "
            "on in a line that begins with a letter; write each instruction in one line",
            RuntimeWarning,
            stacklevel=2,
        )
        plain = [argument for argument in self.command if argument != flags.LINES]
        dataclasses.replace(self, command=plain).run(until)


def _refused(program: str, status: int, text: str) -> CompileError:
    found = _MESSAGE.search(text)
    if found is None:
        return CompileError(f"{program} ended with status {status}: {text.strip()[:_MOST]}")
    hint = ""
    if "cutlass/" in found["text"] or "cute/" in found["text"]:
        hint = (
            "; the headers of CUTLASS are not among the kernel's own files: name their folder in extra_include_paths, "
            "and in the setting `readable` of its [[tool.pytest_nvfp4.kernel]]"
        )
    message = f"{program}: {found['text'].strip()}{hint}\n{text[found.start() :].strip()[:_MOST]}"
    return CompileError(message, found["file"], int(found["line"]))


def _read(folder: Path) -> Iterator[Path]:
    """Yield the files that the compilers have read outside of the folder of the build."""
    for note in folder.glob("*.d"):
        names = note.read_text(errors="replace").replace("\\\n", " ").partition(":")[2].split()
        for path in (Path(name).resolve() for name in names):
            if not path.is_relative_to(folder.resolve()) and path.is_file():
                yield path

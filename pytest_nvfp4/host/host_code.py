"""PTX of a CUDA C++ file that has host code, too, which NVRTC cannot compile: nvcc does. Its host code is not run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pytest_nvfp4.host.extension import compilers, flags
from pytest_nvfp4.host.nvrtc import CompileError

_SKIPPED: Final = re.compile(r'//[^\n]*|/\*(?s:.*?(?:\*/|\Z))|"(?:[^"\\\n]|\\.)*"')
_MARK: Final = re.compile(
    r"<<<|\bmain\s*\(|\bstd::(?:vector|string|cout|cerr)\b"
    r"|\bcuda(?:Malloc|Memcpy|Memset|Free|Launch|Event|Stream|Device|Get)\w*\s*\("
)
_LONGEST_S: Final = 1800.0


def has_host_code(text: str) -> bool:
    """Return whether CUDA C++ has a launch, ``main``, or other code that runs on a host only."""
    return _MARK.search(_SKIPPED.sub(" ", text)) is not None


def ptx(text: str, *, name: str, options: Sequence[str], arch: str, folder: Path) -> str:
    """Return the PTX of a file's kernels.

    Args:
        name: The file's name in messages.
        options: The author's options.
        arch: Architecture, such as ``sm_100a``.
        folder: An empty folder, for files of the compiler.

    Raises:
        NoCompilerError: nvcc or a compiler for C++ is not installed.
        CompileError: nvcc refused the source or an option.
    """
    found = compilers.find(cuda=True, what="a CUDA C++ file with host code")
    source, made = folder / name, folder / "made.ptx"
    source.write_text(text, encoding="utf-8")
    command = [
        str(found.nvcc),
        "-ptx",
        "-x",
        "cu",
        "-ccbin",
        found.cxx,
        f"-arch={arch}",
        flags.LINES,
        *flags.ANY_TOOLKIT,
    ]
    command += [argument for place in found.headers for argument in ("-isystem", str(place))]
    command += [*flags.without_targets(options), str(source), "-o", str(made)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LONGEST_S,
            env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"nvcc took longer than {_LONGEST_S:.0f} s") from None
    log = done.stdout.decode(errors="replace").strip()
    # The PTX is written before ptxas refuses it, and its lines inside assembly are not used.
    if done.returncode and not (flags.breaks_assembly(log) and made.is_file()):
        raise CompileError(log or f"nvcc ended with status {done.returncode}")
    return made.read_text(encoding="utf-8")

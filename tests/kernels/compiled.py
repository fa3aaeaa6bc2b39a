"""Compile the grouped GEMM without a GPU, and search what the compilers wrote."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm"


@dataclass(frozen=True)
class Artifacts:
    """PTX text, path of the CUBIN, and the constants of the kernel's source."""

    ptx: str
    cubin: Path
    constants: SimpleNamespace

    @property
    def usage(self) -> str:
        """Resource usage of the CUBIN, as cuobjdump prints it."""
        return run_tool("nvidia-cuda-cuobjdump", "cuobjdump", "--dump-resource-usage", self.cubin)


def compile_gemm(folder: Path, name: str, arch: str, constants: SimpleNamespace) -> Artifacts:
    """Compile ``name``.py, a file below the grouped GEMM's folder, for ``arch`` in a new process."""
    dump = folder / "dump"
    dump.mkdir()
    (folder / "task.py").write_text(
        "from typing import TypeVar\ninput_t = TypeVar('input_t')\noutput_t = TypeVar('output_t')\n"
    )
    environment = {
        **os.environ,
        "CUTE_DSL_ARCH": arch,
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        "CUTE_DSL_DRYRUN": "0",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_KEEP_CUBIN": "1",
        "CUTE_DSL_DUMP_DIR": str(dump),
        "PYTHONPATH": os.pathsep.join([str(folder), str((FOLDER / name).parent)]),
    }
    module = Path(name).name
    command = [sys.executable, "-c", f"import {module}; {module}.compile_kernel([(40, 128, 256, 1)])"]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    ptx, cubin = list(dump.glob("*.ptx")), list(dump.glob("*.cubin"))
    # CuTe DSL 4.4 fails after both are written when there is no driver, so the files decide.
    assert len(ptx) == len(cubin) == 1, f"no PTX or no CUBIN in {dump}:\n{result.stdout}\n{result.stderr}"
    return Artifacts(ptx[0].read_text().replace("\0", ""), cubin[0], constants)


def run_tool(wheel: str, tool: str, *arguments: str | Path) -> str:
    """Run a tool of an NVIDIA wheel and return what it prints."""
    files = importlib.metadata.files(wheel) or []
    path = next(Path(str(file.locate())) for file in files if file.name == tool)
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def count(pattern: str, text: str) -> int:
    """Return the number of matches."""
    return len(re.findall(pattern, text))


def positions(pattern: str, text: str) -> list[int]:
    """Return the numbers of the lines that match."""
    return [number for number, line in enumerate(text.splitlines()) if re.search(pattern, line)]


def position(pattern: str, text: str) -> int:
    """Return the line of the only match.

    Raises:
        AssertionError: there is none, or more than one.
    """
    lines = positions(pattern, text)
    assert len(lines) == 1, f"{pattern!r} is on lines {lines}"
    return lines[0]

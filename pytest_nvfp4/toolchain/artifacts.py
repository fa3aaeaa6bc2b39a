"""Extract facts from compiled files: registers, local memory, TMEM columns, opcode mixes, SASS."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain import binaries, ptx
from pytest_nvfp4.toolchain.trace import Artifact, Code

_USED = ("cuobjdump", "--dump-resource-usage")
_DISASSEMBLED = ("nvdisasm", "--print-code")
_USAGE = re.compile(r"Function\s+([\w$.]+):\s*\n\s*(.*)")
_SECTION = re.compile(r"^\.text\.([\w$.]+):|^\s*\.section\s+\.text\.([\w$.]+),|Function\s*:\s*([\w$.]+)")
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_SETMAXNREG = "USETMAXREG"
"""Opcode of ``setmaxnreg`` in SASS."""
_KINDS: dict[str, Literal["ptx", "cubin", "sass", "mlir"]] = {
    ".ptx": "ptx",
    ".cubin": "cubin",
    ".sass": "sass",
    ".mlir": "mlir",
}


def _usage(text: str) -> dict[str, dict[str, int]]:
    """Return the resource usage of each kernel of a CUBIN as cuobjdump prints it."""
    return {
        name: {key: int(value) for key, value in re.findall(r"([A-Z]+)(?:\[\d+\])?:(\d+)", facts)}
        for name, facts in _USAGE.findall(text)
    }


def _sass_mixes(text: str) -> dict[str, Counter[str]]:
    mixes: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in text.splitlines():
        if section := _SECTION.search(line):
            current = mixes.setdefault(next(group for group in section.groups() if group), Counter())
        elif opcode := _OPCODE.search(line):
            current[opcode.group(1)] += 1
    return mixes


def _source_name(symbol: str, functions: Iterable[str]) -> str | None:
    stripped = symbol.removeprefix("kernel_cutlass_")
    fitting = [name for name in functions if stripped == name or stripped.startswith(f"{name}_")]
    return max(fitting, key=len, default=None)


def _order(path: Path) -> tuple[int, str]:
    return (path.stat().st_mtime_ns, path.name)


def _rename_by_order(folder: Path) -> None:
    """Rename artifacts to short reproducible names: ``0.ptx``, ``1.ptx``."""
    for suffix in (".ptx", ".cubin", ".mlir"):
        files = sorted(folder.glob(f"*{suffix}"), key=_order)
        for index, path in enumerate(files):
            path.rename(folder / f"{index}{suffix}")


def collect(
    folder: Path, functions: Iterable[str], *, library: str | None = None
) -> tuple[tuple[Code, ...], tuple[Artifact, ...], list[Finding]]:
    """Read the artifacts in a folder, add the SASS, and warn of missing tools and of instructions that ptxas dropped.

    Args:
        folder: Folder with PTX, CUBIN and MLIR.
        functions: Names of the functions of the user's files, for `Code.source_name`.
        library: Folder of the DSL; a module with all of its sources there belongs to the DSL.
    """
    functions = list(functions)
    findings: list[Finding] = []
    _rename_by_order(folder)
    usage: dict[str, dict[str, int]] = {}
    mixes: dict[str, Counter[str]] = {}
    missing: set[str] = set()
    for cubin in sorted(folder.glob("*.cubin")):
        used, sass = binaries.run_each([_USED, _DISASSEMBLED], cubin=cubin)
        if isinstance(used, str):
            usage |= _usage(used)
        else:
            missing.add(f"registers and local memory are not known: {used}")
        if isinstance(sass, str):
            cubin.with_suffix(".sass").write_text(sass, encoding="utf-8")
            mixes |= _sass_mixes(sass)
        else:
            missing.add(f"SASS is not available: {sass}")
    findings += [Finding(kind="environment", message=text, severity="warning") for text in sorted(missing)]
    code: list[Code] = []
    for path in sorted(folder.glob("*.ptx")):
        module = ptx.parse(path.read_text(encoding="utf-8", errors="replace"))
        foreign = bool(library and module.files) and all(
            Path(file).is_relative_to(str(library)) for file in module.files
        )
        for kernel in module.kernels:
            facts = usage.get(kernel.symbol)
            mix = mixes.get(kernel.symbol)
            code.append(
                Code(
                    symbol=kernel.symbol,
                    source_name=None if foreign else _source_name(kernel.symbol, functions),
                    library=foreign,
                    registers=facts.get("REG") if facts else None,
                    stack_bytes=facts.get("STACK") if facts else None,
                    local_bytes=facts.get("LOCAL") if facts else None,
                    spill_stores=mix.get("STL", 0) if mix is not None else None,
                    spill_loads=mix.get("LDL", 0) if mix is not None else None,
                    static_smem_bytes=module.static_smem_bytes,
                    tmem_columns=kernel.tmem_columns,
                    max_threads=kernel.max_threads,
                    ptx_mix=kernel.mix,
                    sass_mix=dict(sorted(mix.items())) if mix is not None else {},
                )
            )
            if not foreign and mix is not None and (dropped := _dropped(code[-1])) is not None:
                findings.append(dropped)
    artifacts = tuple(
        Artifact(kind=_KINDS[path.suffix], name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.iterdir())
        if path.suffix in _KINDS
    )
    return tuple(code), artifacts, findings


def _dropped(code: Code) -> Finding | None:
    """Return a warning if the PTX has ``setmaxnreg`` and the SASS has none (C7507 and C7508 of ptxas)."""
    if not any(opcode.startswith("setmaxnreg") for opcode in code.ptx_mix) or _SETMAXNREG in code.sass_mix:
        return None
    registers = "" if code.registers is None else f", and all warps keep {code.registers} registers"
    return Finding(
        "setmaxnreg",
        f"ptxas has dropped setmaxnreg from {code.source_name or code.symbol}{registers}. Bound them at the launch: "
        "min_blocks_per_mp=1 in CuTe DSL, __launch_bounds__(threads, 1) in CUDA C++. If they are bounded, code behind "
        "setmaxnreg.dec needs more than it leaves",
        severity="warning",
    )

"""Text format of launch and code facts, as stored in snapshots.

::

    # nvfp4-launch 1
    # kernel   kernels/nvfp4_group_gemm/sm100.py
    # problem  gpumode-0
    # dsl      4.8.1

    launch.0.grid  3x1x1
    launch.0.smem_bytes  111616
    # end 2

A line is a name and its value, separated by two blanks; the last line counts them, so that a truncated file is
detected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_nvfp4.isolation.door.versions import other_version
from pytest_nvfp4.toolchain.trace import Code, Trace

VERSION = 1
"""Version of the format."""
_HEADER = re.compile(r"# (\S+) +(\S.*)")
_END = re.compile(r"# end (\d{1,9})")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+\b")


class SheetError(ValueError):
    """Damaged file of facts; the message names the line and the remedy."""


@dataclass(frozen=True)
class Sheet:
    """Named facts with a header; ``kind`` is ``launch`` or ``codegen``."""

    kind: str
    header: Mapping[str, str]
    facts: Mapping[str, str]

    def render(self) -> str:
        """Return the text of the file."""
        lines = [f"# nvfp4-{self.kind} {VERSION}"]
        width = max((len(key) for key in self.header), default=0)
        lines += [f"# {key:<{width}}  {value}" for key, value in self.header.items()]
        lines.append("")
        lines += [f"{name}  {value}" for name, value in self.facts.items()]
        lines.append(f"# end {len(self.facts)}")
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str, *, kind: str) -> Sheet:
        """Parse the text of a file. Raises SheetError if it is damaged, truncated, or of another kind."""
        remedy = "restore it from version control, or rewrite it with --snapshot-update"
        lines = text.splitlines()
        name = f"# nvfp4-{kind} "
        first = f"{name}{VERSION}"
        if lines and lines[0].startswith(name) and (stated := lines[0].rstrip().removeprefix(name)) != str(VERSION):
            raise SheetError(f"line 1: the snapshot {other_version(stated, VERSION)}, or rewrite it: --snapshot-update")
        if not lines or lines[0].rstrip() != first:
            raise SheetError(f"line 1 is {lines[0][:60] if lines else ''!r}, expected {first!r}: {remedy}")
        header: dict[str, str] = {}
        facts: dict[str, str] = {}
        for number, line in enumerate(lines[1:], start=2):
            if end := _END.fullmatch(line):
                if int(end[1]) != len(facts) or any(rest.strip() for rest in lines[number:]):
                    raise SheetError(f"line {number} counts {end[1]} facts, but there are {len(facts)}: {remedy}")
                return cls(kind, header, facts)
            if match := _HEADER.fullmatch(line):
                header[match[1]] = match[2].strip()
            elif line.strip():
                name, separator, value = line.partition("  ")
                if not separator or not name or name != name.strip() or name in facts:
                    raise SheetError(f"line {number} is {line[:80]!r}, expected 'name  value', a new name: {remedy}")
                facts[name] = value.strip()
        raise SheetError(f"the file ends without its '# end' line, so part of it is missing: {remedy}")


def _dims(dims: tuple[int, int, int]) -> str:
    return "x".join(str(number) for number in dims)


def _short(symbol: str, trace: Trace) -> str:
    for code in trace.code:
        if code.symbol == symbol and code.source_name:
            return code.source_name
    return symbol


def launch_facts(trace: Trace) -> dict[str, str]:
    """Return the facts of each launch: sizes, shared memory, TMEM, and TMA descriptors.

    Addresses are omitted because they differ from run to run. Kernels of the DSL itself, which convert inputs or query
    the device, are only counted.
    """
    library = {code.symbol for code in trace.code if code.library}
    launches = [launch for launch in trace.launches if launch.kernel not in library]
    others = len(trace.launches) - len(launches)
    facts: dict[str, str] = {"launches": str(trace.launch_count - others)}
    if others:
        facts["launches_of_the_dsl"] = str(others)
    for index, launch in enumerate(launches):
        name = f"launch.{index}"
        facts[f"{name}.kernel"] = _short(launch.kernel, trace)
        facts[f"{name}.grid"] = _dims(launch.grid)
        facts[f"{name}.block"] = _dims(launch.block)
        facts[f"{name}.cluster"] = _dims(launch.cluster)
        facts[f"{name}.smem_bytes"] = str(launch.smem_bytes)
        if launch.cooperative:
            facts[f"{name}.cooperative"] = "yes"
        if launch.pdl:
            facts[f"{name}.programmatic_dependent_launch"] = "yes"
        for number, view in enumerate(launch.tensormaps):
            facts[f"{name}.tensormap.{number}"] = _ADDRESS.sub("", view.text)
    for index, code in enumerate(own_code(trace)):
        name = f"code.{index}"
        facts[f"{name}.kernel"] = code.source_name or code.symbol
        facts[f"{name}.static_smem_bytes"] = str(code.static_smem_bytes)
        if code.max_threads is not None:
            facts[f"{name}.max_threads"] = str(code.max_threads)
        columns = [str(count) if count is not None else "?" for count in code.tmem_columns]
        facts[f"{name}.tmem_columns"] = ",".join(columns) or "none"
    return facts


def own_code(trace: Trace) -> list[Code]:
    """Return the kernels of a trace without those of the DSL itself."""
    return [code for code in trace.code if not code.library]


def codegen_facts(trace: Trace) -> dict[str, str]:
    """Return the code facts of each kernel: registers, local memory, spills, and counts of PTX opcodes."""
    facts: dict[str, str] = {}
    for index, code in enumerate(own_code(trace)):
        name = f"code.{index}"
        facts[f"{name}.kernel"] = code.source_name or code.symbol
        for key in ("registers", "stack_bytes", "local_bytes", "spill_stores", "spill_loads"):
            value = getattr(code, key)
            facts[f"{name}.{key}"] = "unavailable" if value is None else str(value)
        for opcode, count in code.ptx_mix.items():
            facts[f"{name}.ptx.{opcode}"] = str(count)
    return facts

"""Kernels that break, crash or misbehave, and the results of a run of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from .sources import ENTRY, KERNEL


@dataclass(frozen=True)
class Hostile:
    """A kernel and what is to be said of it.

    Attributes:
        source: The kernel; a line that the failure must name ends in ``# here``.
        said: A pattern in its failure.
        entry: The function that is called; None for a kernel under the contract, which takes torch's time to load.
        bundle: A debug bundle is promised; a file that is not Python needs none, its line says it all.
    """

    source: str
    said: str
    entry: str | None = "custom_kernel"
    bundle: bool = True

    @property
    def line(self) -> int | None:
        return next((number for number, line in enumerate(self.source.splitlines(), 1) if "# here" in line), None)


CONTRACT = "def custom_kernel(data):\n    pass\n"


BROKEN = ENTRY.replace("inner = cute.make_layout((4, 4))", "inner = cute.make_layout((4, 4), stride=(1,))  # here")


AFTER = KERNEL.replace("    return [c for", "    raise RuntimeError('after the compile')  # here\n    return [c for")


CRASH = "import ctypes\n\n\ndef custom_kernel(data):\n    ctypes.string_at(0)  # here\n"


KERNELS = {
    "syntax.py": Hostile("def custom_kernel(data):\n    return (  # here\n", "never closed", bundle=False),
    "imports.py": Hostile("import no_such_module  # here\n" + CONTRACT, "No module named 'no_such_module'"),
    "exits.py": Hostile("import sys\nsys.exit(3)  # here\n" + CONTRACT, r"called sys.exit\(3\)"),
    "vanishes.py": Hostile("import os\nos._exit(0)\n" + CONTRACT, r"exited with status 0 .* before it had a result"),
    "crashes.py": Hostile(CRASH, "ended by SIGSEGV"),
    "reads_stdin.py": Hostile("input()  # here\n" + CONTRACT, "EOFError"),
    "no_dsl.py": Hostile(CONTRACT, "compiled no kernel: it does not use CuTe DSL", entry=None),
    "no_compile.py": Hostile("import cutlass\n" + CONTRACT, "neither its entry nor custom_kernel compiled or launched"),
    "raises_after.py": Hostile(AFTER, "after the compile", entry=None),
    "broken.py": Hostile(BROKEN, "broken.py did not compile", entry="build"),
}


def cases(root: Path, name: str) -> dict[str, tuple[str, str]]:
    found = {}
    for case in ElementTree.parse(root / "junit.xml").getroot().iter("testcase"):
        if case.get("classname") == f"kernels.{name.removesuffix('.py')}":
            outcome = next(iter(case), None)
            found[case.get("name", "")] = ("passed", "") if outcome is None else (outcome.tag, outcome.text or "")
    return found

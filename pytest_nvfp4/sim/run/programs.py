"""Compiled kernels by their module, so that a kernel launched again is not parsed again.

They are kept in the process and not on disk. The process that simulates also runs the kernel's own Python, which may do
as it likes with the simulator in its memory: code that it wrote to a cache could not be trusted by the next kernel's
process. Only the parent could fill such a cache, and it would gain little. Preparing the shipped sm_100a kernel takes
41 ms of CPU time (measured): 9 to parse, 17 to lower, 14 in Python's ``compile``. The code of a block refers to live
objects (functions, tables, forms of instructions), so that lowering must run in any case; 23 ms could be saved, in a
process that needs seconds to import torch and the DSL. A job with nothing new in it is not simulated again at all
(``device.result_cache``).
"""

from __future__ import annotations

import hashlib

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.lower.table import blocking, lowerings
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Module

__all__ = ["Programs"]


class Programs:
    """A cache from PTX text and kernel name to the compiled program."""

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}
        self._programs: dict[tuple[str, str], Program] = {}

    def get(self, ptx: str, kernel: str) -> Program:
        """The program of a kernel.

        Raises:
            PtxError: the text is not PTX as the parser knows it.
            Fault: the module has no such kernel.
        """
        digest = hashlib.sha256(ptx.encode()).hexdigest()
        found = self._programs.get((digest, kernel))
        if found is None:
            module = self._modules.get(digest)
            if module is None:
                module = self._modules[digest] = parse(ptx)
            if kernel not in module.kernels:
                raise Fault("launch", f"the PTX has no kernel {kernel}; it has {', '.join(module.kernels)}")
            found = Program(module, module.kernels[kernel], lowerings=lowerings(), blocking=blocking())
            self._programs[digest, kernel] = found
        return found

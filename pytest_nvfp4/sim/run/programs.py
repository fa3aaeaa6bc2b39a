"""In-process cache of compiled kernels.

The cache is not stored on disk. The process that simulates also runs the kernel's own Python, which can alter the
simulator in memory, so another kernel's process could not trust code that it stored. Only the parent could fill such a
cache, and the gain would be small: preparing the shipped sm_100a kernel takes 41 ms of CPU time (measured): 9 to parse,
17 to lower, 14 in Python's ``compile``. Generated code refers to live objects (functions, tables, instruction forms),
so lowering must run in any case; 23 ms could be saved in a process that takes seconds to import torch and the DSL.
"""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.lower.control_slice import ControlSlice
from pytest_nvfp4.sim.lower.table import blocking, lowerings
from pytest_nvfp4.sim.monitor import Monitor
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Module


class Programs:
    """Cache of compiled programs by PTX text and kernel name."""

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}
        self._programs: dict[tuple[str, str, bool, bool, bool, bool, bool], Program] = {}

    def module(self, ptx: str) -> Module:
        """Return a parsed module. Raises PtxError: the parser does not accept the text."""
        module = self._modules.get(ptx)
        if module is None:
            module = self._modules[ptx] = parse(ptx)
        return module

    def get(
        self, ptx: str, kernel: str, *, monitor: Monitor | None = None, counted: bool = False, stepped: bool = False
    ) -> Program:
        """Return the compiled program of a kernel, as a monitor or a detail needs it, or of blocks of one instruction.

        Raises:
            PtxError: the parser does not accept the text.
            Fault: the module has no such kernel.
        """
        followed = monitor is not None and monitor.follows_path
        without_data = monitor is not None and monitor.without_data
        passed = monitor is not None and monitor.keeps_passed
        key = (ptx, kernel, followed, passed, counted, stepped, without_data)
        program = self._programs.get(key)
        if program is None:
            module = self.module(ptx)
            if kernel not in module.kernels:
                raise Fault("launch", f"the PTX has no kernel {kernel}; it has {', '.join(module.kernels)}")
            program = self._programs[key] = Program(
                module,
                module.kernels[kernel],
                lowerings=lowerings(),
                blocking=blocking(),
                followed=followed,
                passed=passed,
                counted=counted,
                stepped=stepped,
                control=ControlSlice(module.kernels[kernel]) if without_data else None,
            )
        return program

"""Layout of a kernel's shared and local variables.

Static shared variables come first, in the order of their declaration, each at its alignment; the dynamic one
(``extern .shared``) follows. Local variables are offsets into each thread's local memory.
"""

from __future__ import annotations

from pytest_nvfp4.sim.ptx.syntax import Kernel, Module


class SharedLayout:
    """Offsets in bytes by name. ``static`` is the size without dynamic shared memory."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.offsets: dict[str, int] = {}
        self.local_offsets: dict[str, int] = {}
        variables = [*module.variables, *kernel.variables]
        end = 0
        for variable in variables:
            if variable.space == "shared" and not variable.external:
                end = -(-end // variable.align) * variable.align
                self.offsets[variable.name] = end
                end += variable.size
        self.static = end
        for variable in variables:
            if variable.space == "shared" and variable.external:
                start = -(-end // variable.align) * variable.align
                self.offsets[variable.name] = start
                self.static = max(self.static, start)
        local = 0
        for variable in variables:
            if variable.space in ("local", "param") and variable in kernel.variables:
                local = -(-local // variable.align) * variable.align
                self.local_offsets[variable.name] = local
                local += variable.size
        self.local = local
        """Local memory per thread in bytes."""

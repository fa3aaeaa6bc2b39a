"""``compile``: the kernel compiles without a device, and its host code runs up to the launch."""

from __future__ import annotations

import pytest

from pytest_nvfp4.plugin.checks.base import Check
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.failure import CheckFailure


class CompileCheck(Check):
    """The check that a kernel compiles. A failure names the kernel's own line, and a debug bundle holds the rest."""

    name = "compile"
    help = "the kernel compiles without a device, and its host code runs up to the launch"
    stage = 10
    compile_errors_reported_by = None

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if the kernel does not compile; warn of what the compiler warned of.

        A defect that fails alike on several problems (an import, a type) fails once: the first item of this run
        reports it, and the others are skipped and refer to it.
        """
        try:
            trace = nvfp4_case.compiled()
        except CheckFailure as failure:
            for item in nvfp4_case.item.siblings(self.name):
                if item is nvfp4_case.item:
                    break
                if (other := KernelUnderTest(item).compile_failure()) is not None and other.same_as(failure):
                    pytest.skip(f"it fails as {item.nodeid} does")
            raise
        nvfp4_case.warn_of_trace(trace)

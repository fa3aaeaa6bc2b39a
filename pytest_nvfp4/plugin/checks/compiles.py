"""``compile``: the kernel compiles without a device, and its host code runs up to the launch."""

from __future__ import annotations

from pytest_nvfp4.plugin.kernel import KernelUnderTest


def compiles(nvfp4_case: KernelUnderTest) -> None:
    """The kernel compiles; the finding names its own line, and a debug bundle holds the rest."""
    nvfp4_case.warn(nvfp4_case.compiled_or_alike())

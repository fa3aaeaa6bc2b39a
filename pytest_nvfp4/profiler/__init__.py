"""Named regions of CuTe DSL kernels, timed on the device: what a kernel imports, and how it is switched on.

In a kernel, with a fallback where this package is not installed, so that the file can be submitted as it is::

    try:
        from pytest_nvfp4.profiler import region, start, stop
    except ImportError:
        from contextlib import nullcontext
        region = start = stop = lambda *_, **__: nullcontext()

    with region("main loop"):
        ...

Regions emit nothing unless a session is active while the kernel is *compiled*; without one, the PTX is byte for byte
that of the kernel without regions. In a program::

    from pytest_nvfp4 import profiler

    with profiler.session() as regions:
        custom_kernel(data)
        regions.write("regions.json")       # `nvfp4 regions show regions.json`

``emit`` describes what a region costs, ``records`` what is recorded.
"""

from pytest_nvfp4.profiler.emit import mark, region, start, stop
from pytest_nvfp4.profiler.session import Session, session

__all__ = ["Session", "mark", "region", "session", "start", "stop"]

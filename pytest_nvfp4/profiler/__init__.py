"""Named regions of CuTe DSL kernels, timed on the device: what a kernel imports, and how it is switched on.

In a kernel, with a fallback where this package is not installed, so that the file can be submitted as it is::

    try:
        from pytest_nvfp4.profiler import region, region_start, region_stop
    except ImportError:
        from contextlib import nullcontext
        region = region_start = region_stop = lambda *_, **__: nullcontext()

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

from pytest_nvfp4.profiler.emit import region, region_mark, region_start, region_stop
from pytest_nvfp4.profiler.sessions import Session, session

__all__ = ["Session", "region", "region_mark", "region_start", "region_stop", "session"]

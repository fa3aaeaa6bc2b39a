"""Limits that an isolated process sets on itself before it runs untrusted code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pytest_nvfp4.isolation.prctl import die_with_parent

MEMORY_VARIABLE = "NVFP4_MEMORY_BYTES"
FILE_VARIABLE = "NVFP4_FILE_BYTES"
PARENT_VARIABLE = "NVFP4_PARENT_PID"


def apply(environ: Mapping[str, str]) -> None:
    """Bind this process to its parent's life and to the limits named in ``environ``.

    Memory is bounded by ``RLIMIT_DATA`` (private writable memory), not ``RLIMIT_AS``, because CUDA libraries reserve
    far more address space than they use. Core files are disabled. The size of a single file is bounded, so that a
    runaway kernel cannot fill the disk. It is not a cgroup: that would need privileges, and binds a whole process tree.
    """
    if sys.platform == "linux":
        die_with_parent(int(environ.get(PARENT_VARIABLE, os.getppid())))
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for variable, kind in ((MEMORY_VARIABLE, resource.RLIMIT_DATA), (FILE_VARIABLE, resource.RLIMIT_FSIZE)):
        if value := environ.get(variable):
            hard = resource.getrlimit(kind)[1]
            limit = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
            resource.setrlimit(kind, (limit, hard))

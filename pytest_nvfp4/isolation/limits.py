"""What an isolated process does to itself before it runs anything that is not trusted."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

MEMORY_VARIABLE = "NVFP4_MEMORY_BYTES"
FILE_VARIABLE = "NVFP4_FILE_BYTES"
PARENT_VARIABLE = "NVFP4_PARENT_PID"


def apply(environ: dict[str, str]) -> None:
    """Bind this process to its parent's life and to the limits named in ``environ``.

    Memory is bounded by ``RLIMIT_DATA`` (private writable memory), not ``RLIMIT_AS``: CUDA libraries reserve far more
    address space than they use. Core files are switched off, and a single file is bounded so that a runaway kernel
    cannot fill the disk.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        parent = environ.get(PARENT_VARIABLE)
        if parent is not None and os.getppid() != int(parent):
            os._exit(1)  # the parent died before the line above could bind us to it
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for variable, kind in ((MEMORY_VARIABLE, resource.RLIMIT_DATA), (FILE_VARIABLE, resource.RLIMIT_FSIZE)):
        if value := environ.get(variable):
            hard = resource.getrlimit(kind)[1]
            limit = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
            resource.setrlimit(kind, (limit, hard))

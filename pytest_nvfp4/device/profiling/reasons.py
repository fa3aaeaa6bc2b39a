"""Why a profiler has no figures, from the texts of its log: a tool that cannot run here is not an error of the kernel.

Sources: NVIDIA's page on ERR_NVGPUCTRPERM and the documentation of Nsight Compute ("Common Issues"), Nsight Systems
(release notes) and compute-sanitizer; texts of containers that run under gVisor.
"""

from __future__ import annotations

import re
from typing import Final

_REASONS: Final = (
    (
        r"ERR_NVGPUCTRPERM|does not have permission to access NVIDIA GPU Performance Counters",
        "the driver permits performance counters to administrators only (ERR_NVGPUCTRPERM): load it with "
        "NVreg_RestrictProfilingToAdminUsers=0, or run as root with --nvfp4-sandbox=off where that is permitted",
    ),
    (
        r"LibraryNotLoaded|Failed to load (?:the )?(?:driver )?library",
        "a library of the driver cannot be loaded (LibraryNotLoaded): the container hides it, as gVisor does",
    ),
    (
        r"Device not supported|Unsupported GPU|is not supported on this device|ERR_NVGPUCTR\w*UNSUPPORTED",
        "the tool does not support this GPU (Device not supported); a newer version may",
    ),
    (
        r"Unrecognized GPU UUID",
        "the tool does not recognise the GPU (Unrecognized GPU UUID), so that it has no CUDA events",
    ),
    (
        r"Profiling failed because a driver resource was unavailable|another tool is (?:using|profiling)",
        "another profiler (DCGM, a second ncu) holds the counters: end it, or `dcgmi profile --pause`",
    ),
    (
        r"[Ff]ailed to (?:create|open) lock file|InterprocessLockFailed",
        "the tool cannot make its lock file: TMPDIR is not writable, or another user's lock lies there",
    ),
    (
        r"(?i)driver (?:version )?is (?:insufficient|incompatible|not compatible)|Cuda driver is not compatible",
        "the driver is older than the tool needs: use an older version of the tool, or a newer driver",
    ),
    (
        r"Target application terminated before first instrumented API call|[Uu]nable to (?:find|connect to) the target",
        "the tool did not reach the process that it had started",
    ),
    (
        r"(?i)no such option|unrecognised option|unrecognized option|invalid argument.*--",
        "this version of the tool does not know an option that is needed",
    ),
    (r"No kernels were profiled", "the tool saw no launch of a kernel in the profiled calls"),
)
_PATTERNS: Final = tuple((re.compile(pattern), reason) for pattern, reason in _REASONS)


def unavailable_because(log: str) -> str | None:
    """Return why a tool has no figures, one sentence; None if its log names no reason that is known."""
    return next((reason for pattern, reason in _PATTERNS if pattern.search(log)), None)

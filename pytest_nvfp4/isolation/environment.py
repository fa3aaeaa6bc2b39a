"""The environment of an isolated process: what it needs to run, and no secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Additional variables of a process that simulates a GPU, so that torch does not find a real one."""
UNATTENDED = {
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONBREAKPOINT": "0",  # `breakpoint()` is for `nvfp4 debug`: nobody is at a prompt of pdb here
}
"""Variables of a process with a user's code. With these, ``NO_GPU`` and those of ``blas`` it shares a fork server."""
RESULT_VARIABLE = "NVFP4_RESULT_FD"
"""Environment variable that names the descriptor on which a process returns its result."""

_LOCALE = """
    LC_ALL LC_CTYPE LC_COLLATE LC_MESSAGES LC_MONETARY LC_NUMERIC LC_TIME LC_PAPER LC_NAME LC_ADDRESS LC_TELEPHONE
    LC_MEASUREMENT LC_IDENTIFICATION
"""
"""The variables of locale(7). Other names with this prefix are not safe: sshd accepts ``LC_*`` by default, so people
pass arbitrary values under such names."""
_ALLOWED = frozenset(
    f"""
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TEMP TMP VIRTUAL_ENV PYTHONPATH PYTHONHOME LD_LIBRARY_PATH
    CUDA_HOME CUDA_PATH CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES OMP_NUM_THREADS MKL_NUM_THREADS XDG_CACHE_HOME
    SYSTEMROOT {_LOCALE}
    """.split()
)


def taken(name: str) -> str:
    """Return and remove a variable that every process has that this package starts.

    Raises:
        SystemExit: It is not set: somebody started the module by hand.
    """
    if (value := os.environ.pop(name, None)) is None:
        raise SystemExit(
            f"{name} is not set: pytest and nvfp4 start this module, within a sandbox; start it with them "
            "(`nvfp4 exec` for a program, `nvfp4 run` for a kernel)"
        )
    return value


def scrubbed(source: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of ``source`` that a kernel may see, updated with ``extra``.

    A list of allowed names, rather than of forbidden ones, keeps out secrets under unexpected names. Variables of the
    DSL (``CUTE_DSL_*``) are not allowed either, so that a result never depends on the user's shell; settings and
    options configure the DSL.
    """
    allowed = {name: value for name, value in source.items() if name in _ALLOWED}
    allowed.update(extra or {})
    return allowed

"""The environment an isolated process gets: what it needs to run, and no secrets."""

from __future__ import annotations

from collections.abc import Mapping

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""On top of the environment of a process that stands in for a GPU, so that torch does not see one that is there."""

TOKEN_VARIABLE = "NVFP4_PROCESS_TOKEN"
"""Names the token by which a process is found that was left behind."""

_LOCALE = (
    "LC_ALL LC_CTYPE LC_COLLATE LC_MESSAGES LC_MONETARY LC_NUMERIC LC_TIME LC_PAPER LC_NAME LC_ADDRESS LC_TELEPHONE "
    "LC_MEASUREMENT LC_IDENTIFICATION"
)
"""The variables of locale(7), and no others that begin alike: people send anything as LC_*, because sshd takes it."""
_KEPT = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TEMP",
        "TMP",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "PYTHONHOME",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "XDG_CACHE_HOME",
        "SYSTEMROOT",
        *_LOCALE.split(),
    }
)


def scrubbed(source: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of ``source`` that a kernel may see, with ``extra`` on top.

    It is a list of what is let through, not of what is held back: a token under a name that nobody thought of does
    not reach the kernel. Variables of the DSL (``CUTE_DSL_*``) are not let through either, so that a result never
    depends on somebody's shell; settings and options say what the DSL is to do.
    """
    kept = {key: value for key, value in source.items() if key in _KEPT}
    kept.update(extra or {})
    return kept

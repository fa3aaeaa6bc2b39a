"""The parts of this package that a job needs, which are sent to machines, and their hash."""

from __future__ import annotations

from functools import lru_cache

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.toolchain.code_hash import code_hash, parts_without

_LOCAL_ONLY = frozenset(
    {"plugin", "cli", "report", "bench", "loop", "profile", "strategies", "selfcheck", "guide", "proof", "search"}
)
"""Parts that no job needs: tests, tables and commands run on the local side, which also judges results."""


def left_out(backend: str) -> frozenset[str]:
    """Return the parts that no job on a backend needs (see `executor.job_runner`): a GPU's needs no simulator."""
    return _LOCAL_ONLY if backend == "sim" else _LOCAL_ONLY | {"sim"}


@lru_cache(maxsize=4)
def sent_code(backend: str) -> str:
    """Return the hash of the parts that a machine needs. Equal hashes on both sides mean equal code."""
    return code_hash(parts_without(*left_out(backend)))


def simulator_scope() -> str:
    """Return the suffix of the name of a cache of simulated results: another version may find other ones."""
    return f" backend sim {sent_code('sim')}"


def check_code(expected: str, *, backend: str) -> None:
    """Raise RemoteError if this machine's code is not the expected one; an empty hash expects none."""
    if expected and expected != sent_code(backend):
        problem = "the code of pytest-nvfp4 on the remote is not that of the machine that sent the job"
        raise RemoteError("version", problem, "deploy the app again")

"""Modules that a kernel's first process has compiled, for further processes of the same kernel on a GPU.

A comparison times two kernels in eight processes or more, and most of the time of each is the compile (measured beside
an H200: 17 s of ``kernels/nvfp4_group_gemm/sm90.py`` with it). The first process of a kernel stores what it compiled
(``host.compile_cache``) in its own folder; the parent keeps them, and each further process of the very same files
gets a copy. A kernel can distinguish the first process from the others, and none of the others from each other: in
the loop, the first one is the stage that promotes nothing.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Final

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.host.compile_cache import COMPILED_VARIABLE, KEEP_VARIABLE
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_below

_ENTRY: Final = re.compile(r"[0-9a-f]{40}")
_FILES: Final = ("manifest.json", "module.mlirbc")
_MOST_ENTRIES: Final = 64
_MOST_BYTES: Final = 64 << 20
_KEPT: Final = "ptx/compiled"  # a kernel may read and write what is below "ptx"


class CompiledModules:
    """Compiled modules of kernels, by their files.

    Args:
        folder: Folder for the copies; it must outlive the processes that read them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def variables(self, job: Job, folder: Path) -> dict[str, str]:
        """Return the environment variables of a job's process: where to read modules, or where to store them."""
        known = self._known(job)
        if known is None:
            return {}
        kept = folder / _KEPT
        if not known.is_dir():
            return {KEEP_VARIABLE: str(kept)}
        shutil.copytree(known, kept)
        return {COMPILED_VARIABLE: str(kept)}

    def take(self, job: Job, folder: Path) -> None:
        """Copy the modules that a job's process has stored; what is no module is left out."""
        known, kept = self._known(job), folder / _KEPT
        if known is None or known.exists():
            return
        known.mkdir(parents=True)
        try:
            entries = sorted(path for path in kept.iterdir() if _ENTRY.fullmatch(path.name))
        except OSError:
            return
        for entry in entries[:_MOST_ENTRIES]:
            try:
                files = {name: _content(folder, f"{_KEPT}/{entry.name}/{name}") for name in _FILES}
            except (DoorError, OSError):
                continue
            (known / entry.name).mkdir()
            for name, data in files.items():
                (known / entry.name / name).write_bytes(data)

    def _known(self, job: Job) -> Path | None:
        kernel = job.kernel
        if kernel is None:
            return None
        # One file of another kernel must not reach a process of this one, nor must one compiled with other options.
        parts = (kernel.sha256, kernel.main, kernel.entry or "", kernel.arch, *kernel.compile_options)
        return self._folder / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _content(folder: Path, name: str) -> bytes:
    """Return the content of a file below the folder of a job. Raises DoorError and OSError."""
    size = (folder / name).lstat().st_size
    if size > _MOST_BYTES:
        raise DoorError("a compiled module", f"has {size} bytes, and at most {_MOST_BYTES} are read")
    return read_below(folder, name, source="a compiled module", size=size)

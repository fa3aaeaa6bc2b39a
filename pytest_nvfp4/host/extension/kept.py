"""Built extensions for another process with the same sources, beside the modules that the DSL has compiled.

Beside the library lie the names of all files that its compilers have read, headers of torch, CUDA and the system among
them, with their digests: the key has only what is known before a compiler runs. (5,467 files of 24 MB with torch's
headers: 0.2 s to read, where a build takes 20 s and more.) Files beside the kernel are named from its folder, which the
other process may have elsewhere.

A kernel's process finds, builds and stores; the parent copies what that process has stored, only for the same kernel
(``toolchain.cache``) or the same program of ``nvfp4 exec`` (``toolchain.program_extensions``).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_nvfp4.host.compile_cache import CompileCache

_MANIFEST = "read.json"
_PLACE = "manifest.json"
"""File with the folder from which the files were named when the library was built."""


def find(cache: CompileCache, key: str, name: str, base: Path) -> Path | None:
    """Return the library of a kept extension whose sources are unchanged, or None."""
    for folder in cache.known:
        entry = folder / key
        try:
            read: dict[str, str] = json.loads((entry / _MANIFEST).read_bytes())
            if all(_digest(base / path) == digest for path, digest in read.items()):
                library = entry / f"{name}.so"
                if library.is_file():
                    cache.reused += 1
                    return library
        except (OSError, ValueError, AttributeError, TypeError):
            continue
    return None


def moved(library: Path, base: Path) -> tuple[str, str] | None:
    """Return the folder that the line table of a kept library names, if that has gone, and the one in its place."""
    try:
        before = json.loads((library.parent / _PLACE).read_bytes())["base"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    gone = isinstance(before, str) and before.startswith("/") and not Path(before).exists()
    return (f"{before}/", f"{base}/") if gone else None


def store(cache: CompileCache, key: str, library: Path, read: Sequence[Path], base: Path) -> None:
    """Keep a library; errors such as a full disk are ignored."""
    if cache.keep is None:
        return
    try:
        cache.keep.mkdir(parents=True, exist_ok=True)
        build = Path(tempfile.mkdtemp(dir=cache.keep, prefix="new-"))
        try:
            shutil.copyfile(library, build / library.name)
            names = {str(path.relative_to(base) if path.is_relative_to(base) else path): _digest(path) for path in read}
            (build / _MANIFEST).write_text(json.dumps(names), encoding="utf-8")
            (build / _PLACE).write_text(json.dumps({"base": str(base)}), encoding="utf-8")
            build.rename(cache.keep / key)
        finally:
            shutil.rmtree(build, ignore_errors=True)
    except OSError:
        return


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

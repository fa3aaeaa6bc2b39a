"""Cache of modules that the DSL's compiler has lowered, for reuse in another process.

Most of a compile is not Python: of 17 s for a kernel of 1.3 MB of PTX, lowering and ptxas take 13 s (measured, DSL
4.8.1). The trace of a kernel compiles it once; a process that simulates the kernel builds the same IR, finds it here,
and continues with the lowered module, the PTX and the CUBIN of the trace. The DSL's own file cache is no substitute: it
is off for ``cute.compile``, and whenever PTX is dumped (``BaseDSL._prepare_compilation``).

The key is the IR with its locations, the pipeline, and the versions of the DSL and Python. Without the lines, two equal
functions of a file would be one. The folders of the sources, which locations name, too, are no part of the key. So a
cache serves only processes with the same sources, because the line table of the PTX names the files of the process that
filled it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.host.tvm_ffi import in_place_of

COMPILED_VARIABLE = "NVFP4_COMPILED"
"""Environment variable with folders of modules that were compiled from the kernel's files."""
KEEP_VARIABLE = "NVFP4_COMPILED_INTO"
"""Environment variable with the folder that a worker for a GPU stores the modules in that its kernel compiles."""
_MODULE = "module.mlirbc"
_MANIFEST = "manifest.json"
_WRITTEN = (".ptx", ".cubin")
_FOLDER = re.compile(r'"/(?:[^"\\\n]|\\.)*/')
"""The folder of the file of a location, as MLIR writes it."""


def folder_name(kernel: Path) -> str:
    """Return the name of the folder of the modules of a kernel file, among the files of its trace.

    It depends on the file's path, because the line table names the files of the process that compiled them.
    """
    return f"compiled-{hashlib.sha256(str(kernel).encode()).hexdigest()[:16]}"


class CompileCache:
    """Replacement of ``Compiler.compile`` that looks a module up, and stores it after a cache miss.

    Args:
        known: Folders to look in.
        keep: Folder to store compiled modules in, made on first use; None to store none.
        base: Folder from which extensions name their files; by default that of the file that builds one.

    Attributes:
        known, keep, base: These folders; ``extension.kept`` uses them, too.
        reused: Number of cache hits.
    """

    def __init__(self, known: Sequence[Path] = (), *, keep: Path | None = None, base: Path | None = None) -> None:
        self.known = tuple(known)
        self.keep = keep
        self.base = base
        self.reused = 0

    def compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``Compiler.compile``, which lowers the module in place and may return it."""
        dump_dir = Path(os.environ.get("CUTE_DSL_DUMP_DIR") or os.devnull)

        @functools.wraps(original)
        def compile_it(self_: Any, module: Any, pipeline: str, *args: Any, **kwargs: Any) -> Any:
            # A hook may change the lowered module, so it gets a module of its own.
            if self_._post_compile_hook is not None:
                return original(self_, module, pipeline, *args, **kwargs)
            name = _name(module, pipeline, dump_dir, [*args, *sorted(kwargs.items())])
            for folder in self.known:
                if (manifest := _load(module, folder / name, dump_dir)) is not None:
                    self.reused += 1
                    return module if manifest["returned"] else None
            before = dict(_stamps(dump_dir))
            result = original(self_, module, pipeline, *args, **kwargs)
            if self.keep is not None and (result is None or result is module):
                written = [path for path, stamp in _stamps(dump_dir) if before.get(path) != stamp]
                _store(module, self.keep / name, written, returned=result is module)
            return result

        return in_place_of(original, compile_it)


def _name(module: Any, pipeline: str, dump_dir: Path, how: Sequence[object]) -> str:
    """Return the cache key of a compile. The dump folder in the pipeline's text does not affect the result."""
    dsl = importlib.import_module("cutlass")
    parts = (
        _FOLDER.sub('"', module.operation.get_asm(enable_debug_info=True)),
        pipeline.replace(str(dump_dir), "DUMP_DIR"),
        repr(how),
        getattr(dsl, "__version__", ""),
        sys.version,
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:40]


def _stamps(folder: Path) -> Iterator[tuple[Path, tuple[int, int, int]]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in _WRITTEN:
            status = path.stat()
            yield path, (status.st_mtime_ns, status.st_size, status.st_ino)


def _store(module: Any, entry: Path, written: Sequence[Path], *, returned: bool) -> None:
    """Store a lowered module and the files that its compile wrote; ignore errors such as a full disk."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        build = Path(tempfile.mkdtemp(dir=entry.parent, prefix="new-"))
        try:
            with (build / _MODULE).open("wb") as file:
                module.operation.write_bytecode(file)
            for path in written:
                # Not a link: the next compile of the same function writes into the same file.
                shutil.copyfile(path, build / path.name)
            manifest = {"returned": returned, "written": [path.name for path in written]}
            (build / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
            build.rename(entry)
        finally:
            shutil.rmtree(build, ignore_errors=True)
    except OSError:
        return


def _load(module: Any, entry: Path, dump_dir: Path) -> dict[str, Any] | None:
    """Replace a module by the lowered one of an entry, write the compile's files, and return the manifest.

    None, without changes, for an entry that is missing or damaged.
    """
    ir: Any = importlib.import_module("cutlass._mlir.ir")
    try:
        manifest: dict[str, Any] = json.loads((entry / _MANIFEST).read_bytes())
        lowered = ir.Module.parse((entry / _MODULE).read_bytes(), context=module.context)
        files = {name: (entry / name).read_bytes() for name in manifest["written"]}
        for name, data in files.items():
            (dump_dir / name).write_bytes(data)
    except (OSError, ValueError, KeyError, TypeError, ir.MLIRError):
        return None
    for operation in list(module.body.operations):
        operation.operation.erase()
    for operation in list(lowered.body.operations):
        operation.operation.detach_from_parent()
        module.body.append(operation)
    attributes = lowered.operation.attributes
    for attribute in attributes:
        key = attribute if isinstance(attribute, str) else attribute.name
        module.operation.attributes[key] = attributes[key]
    return manifest

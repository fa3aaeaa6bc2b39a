"""What the DSL's compiler made of a module, kept so that another process need not compile the same again.

Most of a compile is not Python: of 17 s for a kernel of 1.3 MB of PTX, 13 s go into lowering and ptxas (measured, DSL
4.8.1). The trace of a kernel has done that once; a process that simulates the kernel builds the same IR, finds it here,
and goes on with the lowered module, the PTX and the CUBIN of the trace. The DSL's own file cache does not serve: it is
off for ``cute.compile``, and whenever PTX is kept (``BaseDSL._prepare_compilation``).

What is looked up is the IR that the compiler was given, without its locations, with the pipeline and the versions of
the DSL and Python: another IR is compiled. Locations differ by the folder that the sources lie in; so a store is only
for processes whose sources are the same, and the line table of the PTX names the files of the process that kept it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.host.tvm_ffi import in_place_of

__all__ = ["CompiledModules", "folder_of"]

_MODULE = "module.mlirbc"
_MANIFEST = "manifest.json"
_WRITTEN = (".ptx", ".cubin")


def folder_of(kernel: Path, *, below: Path) -> Path:
    """The folder of a trace that holds what was compiled for a kernel file.

    The line table names the files of the process that compiled them: a trace that was moved to another kernel file has
    nothing for it.
    """
    return below / f"compiled-{hashlib.sha256(str(kernel).encode()).hexdigest()[:16]}"


class CompiledModules:
    """Takes the place of ``Compiler.compile``: looks a module up, and keeps what had to be compiled.

    Args:
        known: Folders to look in.
        keep: The folder to keep compiled modules in; None to keep none. It is made when it is needed.
    """

    def __init__(self, known: Sequence[Path] = (), *, keep: Path | None = None) -> None:
        self._known = tuple(known)
        self._keep = keep
        self.reused = 0
        """Modules that were not compiled again."""

    def compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of ``Compiler.compile``, which lowers the module in place and may return it."""

        @functools.wraps(original)
        def compile_it(self_: Any, module: Any, pipeline: str, *args: Any, **kwargs: Any) -> Any:
            # A hook sees the lowered module and may do anything: it gets one of its own.
            if self_._post_compile_hook is not None:
                return original(self_, module, pipeline, *args, **kwargs)
            dump_dir = Path(os.environ.get("CUTE_DSL_DUMP_DIR") or os.devnull)
            name = _name(module, pipeline, dump_dir, [*args, *sorted(kwargs.items())])
            for folder in self._known:
                if (manifest := _load(module, folder / name, dump_dir)) is not None:
                    self.reused += 1
                    return module if manifest["returned"] else None
            before = dict(_stamps(dump_dir))
            result = original(self_, module, pipeline, *args, **kwargs)
            if self._keep is not None and (result is None or result is module):
                written = [path for path, stamp in _stamps(dump_dir) if before.get(path) != stamp]
                _store(module, self._keep / name, written, returned=result is module)
            return result

        return in_place_of(original, compile_it)


def _name(module: Any, pipeline: str, dump_dir: Path, how: Sequence[object]) -> str:
    """What decides the result of a compile. The folder of the dumps is part of the pipeline's text, and does not."""
    dsl = importlib.import_module("cutlass")
    parts = (
        module.operation.get_asm(enable_debug_info=False),
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
    """Keep a lowered module and the files that its compile wrote. A full disk is no reason to fail."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        build = Path(tempfile.mkdtemp(dir=entry.parent, prefix="new-"))
        try:
            with (build / _MODULE).open("wb") as file:
                module.operation.write_bytecode(file)
            for path in written:
                # A copy: the next compile of the same function writes into the very file.
                shutil.copyfile(path, build / path.name)
            manifest = {"returned": returned, "written": [path.name for path in written]}
            (build / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
            build.rename(entry)
        finally:
            shutil.rmtree(build, ignore_errors=True)
    except OSError:
        return


def _load(module: Any, entry: Path, dump_dir: Path) -> dict[str, Any] | None:
    """Turn a module into the lowered one of an entry, and write the files its compile would; None if there is none."""
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

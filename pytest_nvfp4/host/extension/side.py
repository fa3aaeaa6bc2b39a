"""``torch.utils.cpp_extension.load_inline`` and ``load`` without a GPU.

torch writes the sources and calls one function, which builds and imports the extension. That function is replaced: the
extension is built with definitions of CUDA's functions of its own (``build``), and each of its functions raises what
one of them has raised. Device tensors are passed as they are: C++ reads their sizes, types and addresses, and torch's
operators in C++ are dispatched like those in Python.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.user_line import UserLine, call_native, user_line
from pytest_nvfp4.host.after_import import after_import
from pytest_nvfp4.host.compile_cache import CompileCache
from pytest_nvfp4.host.device_side import DeviceSide
from pytest_nvfp4.host.extension import compilers, flags, kept
from pytest_nvfp4.host.extension.build import Extension, build
from pytest_nvfp4.host.extension.compilers import Compilers
from pytest_nvfp4.host.extension.operators import Operators
from pytest_nvfp4.host.extension.runtime_calls import ExtensionCalls
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.source_lines import with_lines
from pytest_nvfp4.host.stashed import Stashed

_GENERATED: Final = ("main.cpp", "cuda.cu")
"""Files that ``load_inline`` writes."""


class ExtensionSide:
    """Builds and imports extensions, from the import of ``torch.utils.cpp_extension`` until ``close``.

    Args:
        modules: The modules of this process.
        stashed: The exception that a stand-in has raised.
        cache: Built extensions, if they are kept.
    """

    def __init__(
        self,
        side: DeviceSide,
        device: DeviceModel,
        modules: LoadedModules,
        stashed: Stashed,
        *,
        cache: CompileCache | None = None,
    ) -> None:
        self._stashed = stashed
        self._cache = cache
        self._make_calls = functools.partial(ExtensionCalls, device, side, modules, stashed)
        self._calls: ExtensionCalls | None = None
        self._operators = Operators(stashed)
        self._loaded: dict[str, ModuleType | str] = {}
        self._stack = contextlib.ExitStack()

    def start(self) -> None:
        """Replace torch's function, now or when its module is imported."""
        self._stack.callback(after_import("torch.utils.cpp_extension", self._activate))
        self._operators.start(self._stack)

    def close(self) -> None:
        """Restore torch; functions of extensions fail from then on."""
        self._stack.close()

    def _activate(self, module: ModuleType) -> None:
        original = module._jit_compile
        signature = inspect.signature(original)

        @functools.wraps(original)
        def jit_compile(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return self._load(**bound.arguments)

        setattr(module, original.__name__, jit_compile)
        self._stack.callback(setattr, module, original.__name__, original)

    def _load(
        self,
        *,
        name: str,
        sources: str | Sequence[str],
        extra_cflags: Sequence[str] | None,
        extra_cuda_cflags: Sequence[str] | None,
        extra_ldflags: Sequence[str] | None,
        extra_include_paths: Sequence[str] | str | None,
        build_directory: str,
        is_python_module: bool,
        is_standalone: bool = False,
        **_: Any,
    ) -> Any:
        """Build an extension, unless one with these sources is kept, and import it."""
        if is_standalone:
            raise HostSideError(
                f"the extension {name} is a program (is_standalone=True), which has no stand-in without a GPU: build a "
                "module, or a library of operators (is_python_module=False)"
            )
        if not (name if is_python_module else re.sub(r"[.-]", "_", name)).isidentifier():
            raise HostSideError(f"the name of an extension is an identifier, got {name[:80]!r}")
        line = user_line()
        files = [Path(source).absolute() for source in ([sources] if isinstance(sources, str) else sources)]
        headers = [extra_include_paths] if isinstance(extra_include_paths, str) else extra_include_paths or []
        given = Extension(
            name=name,
            sources=tuple(files),
            cxx=flags.split(extra_cflags or ()),
            nvcc=flags.split(extra_cuda_cflags or ()),
            linker=flags.split(extra_ldflags or ()),
            headers=tuple(str(Path(folder).absolute()) for folder in headers),
            arch=os.environ.get("CUTE_DSL_ARCH") or "sm_100a",
        )
        base = Path(line.file).parent if line is not None else Path.cwd()
        if self._cache is not None and self._cache.base is not None:
            base = self._cache.base
        found = compilers.find(cuda=given.cuda)
        key = given.key(base, found)
        if key not in self._loaded:
            library = kept.find(self._cache, key, name, base) if self._cache is not None else None
            if library is None:
                library, read = self._build(given, found, Path(build_directory), line)
                if self._cache is not None:
                    kept.store(self._cache, key, library, read, base)
            moved = kept.moved(library, base)
            self._loaded[key] = (self._import if is_python_module else self._open)(name, library, moved)
        return self._loaded[key]

    @staticmethod
    def _build(given: Extension, found: Compilers, generated: Path, line: UserLine | None) -> tuple[Path, list[Path]]:
        folder = Path(tempfile.mkdtemp(prefix=f"{given.name}-"))
        sources = []
        for source in given.sources:
            if source.parent == generated.absolute() and source.name in _GENERATED:
                text = with_lines(source.read_text(encoding="utf-8"), _files(line), name=source.name)
                source = folder / source.name  # noqa: PLW2901
                source.write_text(text, encoding="utf-8")
            sources.append(source)
        headers = (*given.headers, str(generated)) if sources != list(given.sources) else given.headers
        return build(given.of(tuple(sources), headers), found, folder)

    def _open(self, name: str, library: Path, moved: tuple[str, str] | None) -> str:
        """Load a library for what its constructors register; return its path, as torch does."""
        with self._loading(name, moved):
            importlib.import_module("torch").ops.load_library(str(library))
        return str(library)

    def _import(self, name: str, library: Path, moved: tuple[str, str] | None) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, library)
        if spec is None or spec.loader is None:
            raise HostSideError(f"the extension {name} cannot be imported from {library}")
        with self._loading(name, moved):
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        for owner in (module, *(value for value in vars(module).values() if inspect.isclass(value))):
            self._wrap(owner)
        sys.modules.setdefault(name, module)
        return module

    @contextlib.contextmanager
    def _loading(self, name: str, moved: tuple[str, str] | None) -> Iterator[None]:
        """Provide an extension's constructors with the stand-ins; raise what one of them has raised."""
        if self._calls is None:
            self._calls = self._make_calls()
        self._calls.moved = moved
        before = {key: os.environ.get(key) for key in self._calls.variables}
        os.environ.update(self._calls.variables)
        try:
            with self._operators.registering(name):
                yield
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
        if (error := self._stashed.take()) is not None:
            raise error

    def _wrap(self, owner: Any) -> None:
        """Replace the functions of a module or class that are compiled."""
        for name, value in list(vars(owner).items()):
            if inspect.isroutine(value) and not (name.startswith("__") and name not in ("__init__", "__call__")):
                with contextlib.suppress(TypeError, AttributeError):  # a class of the interpreter itself
                    native = functools.wraps(value)(functools.partial(call_native, value))
                    setattr(owner, name, self._stashed.raising(native))


def _files(line: UserLine | None) -> list[str]:
    return list(dict.fromkeys(_callers(line)))


def _callers(line: UserLine | None) -> Iterator[str]:
    while line is not None:
        yield line.file
        line = line.caller

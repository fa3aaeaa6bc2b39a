"""The folder to which the DSL writes the code that it compiles, and copies of it where the program wants it.

The simulator executes the PTX in that folder, so that no option or variable of the program may name another one. One
that does gets a copy of each file, if it exists: the DSL, too, writes nothing into a missing folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

DSL_PREFIXES: Final = ("CUTE_DSL", "CUTE_EXPERIMENTAL_DSL")
"""Prefixes of the environment variables of the DSL's front ends, ``cute.jit`` and ``cute.experimental.jit``."""
_SUFFIXES: Final = (".ptx", ".cubin")


class Dumps:
    """The files that the DSL writes in this process, to the folder that ``CUTE_DSL_DUMP_DIR`` names at first."""

    def __init__(self) -> None:
        self._folder = _named()
        self._wanted: Path | None = None
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def applying(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return the replacement of ``CompileOptions.apply_envar_settings``, which each way to compile calls."""

        @functools.wraps(original)
        def apply(options: Any, *args: Any, **kwargs: Any) -> None:
            option = next((each for kind, each in options.options.items() if kind.__name__ == "DumpDir"), None)
            self._wanted = Path(option.value) if option is not None and option.value else _named()
            if option is not None and self._folder is not None:
                option.value = str(self._folder)
            original(options, *args, **kwargs)

        return apply

    def new_ptx(self) -> list[str]:
        """Return the PTX written since the last call. An engine is built directly after its own compile."""
        if self._folder is None or not self._folder.is_dir():
            return []
        texts = []
        for path in sorted(path for path in self._folder.iterdir() if path.suffix in _SUFFIXES):
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._seen.get(path) == stamp:
                continue
            self._seen[path] = stamp
            if self._wanted is not None and self._wanted.absolute() != self._folder.absolute():
                with contextlib.suppress(OSError):
                    shutil.copyfile(path, self._wanted / path.name)
            if path.suffix == ".ptx":
                # DSL 4.4.0 ends the file with a NUL byte.
                texts.append(path.read_bytes().replace(b"\0", b"").decode())
        return texts


def _named() -> Path | None:
    folder = os.environ.get(f"{DSL_PREFIXES[0]}_DUMP_DIR")
    return Path(folder) if folder else None

"""Override the compile options that a kernel asks for, whichever way it compiles."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_OURS = {
    "gpu_arch": "the architecture is set with --nvfp4-arch or `arch` in [tool.pytest_nvfp4]",
    "dump_dir": "artifacts are kept in the trace's own folder",
    "keep_ptx": "PTX is always kept",
    "keep_cubin": "CUBIN is always kept",
}


class OptionError(ValueError):
    """A compile option that the installed DSL does not know or that is not for the user to set."""


_SHOWN_CODE = re.compile(r"\n(?:\s|\x1b\[[\d;]*m)*-->")
"""Where DSL 4.8 goes on to show the lines of this package that called it."""


def _class_of(dest: str, known: dict[Any, Any]) -> Any:
    wanted = dest.replace("_", "")
    for cls in known:
        if cls.__name__.lower() == wanted:
            return cls
    return None


def check_arch(arch: str) -> None:
    """Refuse an architecture that the installed DSL does not know.

    It would say so itself only where a kernel asks for the architecture, as an error of the kernel's.

    Raises:
        OptionError: it does not know it.
    """
    known: Any = None
    for name in ("cutlass.base_dsl.enums", "cutlass.base_dsl.arch"):  # the first is 4.8's
        with contextlib.suppress(ImportError):
            known = getattr(importlib.import_module(name), "Arch", None)
            break
    names = list(getattr(known, "__members__", ()))
    if names and arch not in names:
        raise OptionError(
            f"CuTe DSL knows no architecture {arch!r}, which --nvfp4-arch or `arch` in [tool.pytest_nvfp4] names: "
            f"a B200 is sm_100a, a Hopper GPU sm_90a; it knows {', '.join(names)}"
        )


def install(extra: Sequence[str], *, dump_dir: Path) -> None:
    """Make every compile of this process use ``extra`` (``["--opt-level 2"]``) on top of its own options.

    All ways to compile (``cute.compile(options=...)``, ``cute.compile[...]``, a direct call of a jitted function) end
    in ``CompileOptions.apply_envar_settings``, so that is where the override is made. Artifacts always go to
    ``dump_dir``, wherever the kernel would have put them.

    Raises:
        OptionError: the DSL does not accept an option, or it is set by other means.
    """
    from cutlass.base_dsl import compiler

    text = " ".join(extra)
    overrides: dict[Any, Any] = {}
    if text.strip():
        try:
            parsed = compiler._parse_compile_options_from_str(text)
        except BaseException as error:  # argparse ends in SystemExit, the DSL in classes that differ by version
            said = _SHOWN_CODE.split(str(error))[0].strip()
            raise OptionError(f"the DSL does not accept the compile options {text!r}: {said}") from error
        for token in shlex.split(text):
            if token.startswith("--"):
                dest = token[2:].partition("=")[0].replace("-", "_")
                if dest in _OURS:
                    raise OptionError(f"compile option --{dest.replace('_', '-')} cannot be overridden: {_OURS[dest]}")
                cls = _class_of(dest, parsed.options)
                if cls is None:
                    raise OptionError(f"compile option {token!r} is not one this DSL version can override")
                overrides[cls] = parsed.options[cls].value
    original = compiler.CompileOptions.apply_envar_settings

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        for cls, value in overrides.items():
            self.options[cls].value = value
        folder = _class_of("dump_dir", self.options)
        if folder is not None:
            self.options[folder].value = str(dump_dir)
        return original(self, *args, **kwargs)

    setattr(compiler.CompileOptions, original.__name__, apply)

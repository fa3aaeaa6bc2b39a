"""Override the compile options of a kernel for every way of compiling."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.host import triton_pick
from pytest_nvfp4.host.triton_pick import Picks

_RESERVED = {
    "gpu_arch": "the architecture is set with --nvfp4-arch or `arch` in [tool.pytest_nvfp4]",
    "dump_dir": "artifacts are stored in the trace's folder",
    "keep_ptx": "PTX is always stored",
    "keep_cubin": "CUBIN is always stored",
}


class OptionError(ValueError):
    """Compile option that the installed DSL does not support, that is reserved, or that picks nothing."""


_CODE_EXCERPT = re.compile(r"\n(?:\s|\x1b\[[\d;]*m)*-->")
"""Start of the excerpt of this package's code in messages of DSL 4.8."""


def _class_of(dest: str, known: dict[Any, Any]) -> Any:
    name = dest.replace("_", "")
    return next((cls for cls in known if cls.__name__.lower() == name), None)


def check_arch(arch: str) -> None:
    """Reject an architecture that the installed DSL does not support.

    The DSL reports it only when a kernel queries the architecture, as an error of the kernel.

    Raises:
        OptionError: unsupported architecture.
    """
    known: Any = None
    for name in ("cutlass.base_dsl.enums", "cutlass.base_dsl.arch"):  # the first is 4.8's
        with contextlib.suppress(ImportError):
            known = getattr(importlib.import_module(name), "Arch", None)
            break
    names = list(getattr(known, "__members__", ()))
    if names and arch not in names:
        raise OptionError(
            f"CuTe DSL does not support architecture {arch!r} of --nvfp4-arch or `arch` in [tool.pytest_nvfp4]: a B200 "
            f"is sm_100a, a Hopper GPU sm_90a; use one of {', '.join(names)}"
        )


def install(extra: Sequence[str]) -> Picks:
    """Make every compile of this process use ``extra`` (``["--opt-level 2"]``) in addition to its own options.

    ``--autotune`` among them is Triton's (``host.triton_pick``); the result has what it picks.

    All ways to compile (``cute.compile(options=...)``, ``cute.compile[...]``, a direct call of a jitted function) call
    ``CompileOptions.apply_envar_settings``, which this function wraps.

    Raises:
        OptionError: the DSL rejects an option, or it is reserved.
    """
    from cutlass.base_dsl import compiler

    try:
        picks, text = triton_pick.install(" ".join(extra))
    except ValueError as error:
        raise OptionError(str(error)) from None
    overrides: dict[Any, Any] = {}
    if text.strip():
        try:
            parsed = compiler._parse_compile_options_from_str(text)
        except BaseException as error:  # argparse raises SystemExit, the DSL classes that differ by version
            reason = _CODE_EXCERPT.split(str(error))[0].strip()
            raise OptionError(f"the DSL does not accept the compile options {text!r}: {reason}") from error
        for token in shlex.split(text):
            if token.startswith("--"):
                dest = token[2:].partition("=")[0].replace("-", "_")
                if dest in _RESERVED:
                    raise OptionError(
                        f"compile option --{dest.replace('_', '-')} cannot be overridden: {_RESERVED[dest]}"
                    )
                cls = _class_of(dest, parsed.options)
                if cls is None:
                    raise OptionError(f"compile option {token!r} is not one this DSL version can override")
                overrides[cls] = parsed.options[cls].value
    original = compiler.CompileOptions.apply_envar_settings

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        for cls, value in overrides.items():
            self.options[cls].value = value
        return original(self, *args, **kwargs)

    setattr(compiler.CompileOptions, original.__name__, apply)
    return picks

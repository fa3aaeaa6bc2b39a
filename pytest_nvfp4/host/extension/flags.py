"""Options of compilers as an author writes them, rewritten for the modelled device."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from pytest_nvfp4.driver.launches import HostSideError

_TARGETS: Final = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code")
"""Options that name an architecture, with ``=`` or followed by their value."""
_DROPPED: Final = re.compile(
    r"-O\w*|--optimize=.*|-g\w*|--debug|-lineinfo|--generate-line-info|-march=.*|-mtune=.*|-flto.*|--compress-mode=.*"
    r"|--keep|-t=?\d+|--threads=?\d*|-v|--verbose|--use-local-env|--time.*"
)
"""Options that change neither the device code nor what host code computes: the build takes longer with them."""
_RELOCATABLE: Final = re.compile(r"-rdc(=true)?|--relocatable-device-code(=true)?|-dc|--device-c|-dlto|-dlink")
_LIBRARIES: Final = re.compile(
    r"-l(?:cuda|cudart|cudart_static|cudadevrt|cublas|cublasLt|cudnn|cusparse|cusolver|nvrtc|c10_cuda|torch_cuda)"
)
ANY_TOOLKIT: Final = ("-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK",)
"""The wheels of nvcc may be newer than those of the headers, which torch pins; the C++ library refuses that."""
_EARLY: Final = re.compile(r"--?std=(?:c|gnu)\+\+(98|03|11|14|17)")
"""Standards of C++ that torch's headers may be too new for."""
_KEPT_DEBUG: Final = frozenset({"-gencode"})
LINES: Final = "-lineinfo"
_INSIDE: Final = "Parsing error near '.loc'"


def split(options: Sequence[str]) -> tuple[str, ...]:
    """Return an author's options as a shell splits them: torch joins them to the line of a shell.

    An empty text is no option then, and one text may hold several.
    """
    return tuple(shlex.split(" ".join(options)))


def for_device(options: Sequence[str], arch: str) -> list[str]:
    """Return an author's options of nvcc without its architectures, and with that of the device.

    PTX is embedded, which is executed, and the CUBIN, of which registers and sizes are known.

    Raises:
        HostSideError: an option for which nothing stands in.
    """
    number = arch.removeprefix("sm_")
    own = without_targets(options)
    if refused := next(filter(_RELOCATABLE.fullmatch, own), None):
        raise HostSideError(
            f"the option {refused} of nvcc has no stand-in without a GPU: it links device code of several files; "
            "include them in one file"
        )
    debug = any(option in {"-G", "--device-debug"} for option in own)
    return [
        *_reduced(own),
        *([] if debug else [LINES]),
        *("-gencode", f"arch=compute_{number},code=[compute_{number},sm_{number}]", "--no-compress"),
    ]


def breaks_assembly(log: str) -> bool:
    """Return whether ptxas refuses what nvcc 13.5 makes of an ``asm`` statement when it writes line information.

    nvcc writes a ``.loc`` before each line of the text that begins with a letter, also inside an instruction that goes
    on in that line.
    """
    return _INSIDE in log


def for_host(options: Sequence[str]) -> list[str]:
    """Return an author's options of the compiler for C++ without those that only take time."""
    return _reduced(options)


def of_standard(options: Sequence[str], least: int) -> list[str]:
    """Return options whose standard of C++ is at least this one, such as 20.

    Public submissions name the standard of the torch that they were written for, and newer headers refuse it.
    """

    def early(option: str) -> bool:
        named = _EARLY.fullmatch(option)
        return named is not None and int(named[1]) % 98 < least

    return [f"-std=c++{least}" if early(option) else option for option in options]


def for_linking(options: Sequence[str]) -> list[str]:
    """Return an author's options of the linker without CUDA's libraries: stand-ins define their functions."""
    return [option for option in options if not _LIBRARIES.fullmatch(option)]


def _reduced(options: Sequence[str]) -> list[str]:
    return [option for option in options if not _DROPPED.fullmatch(option) or option in _KEPT_DEBUG]


def without_targets(options: Sequence[str]) -> list[str]:
    """Return options without those that name an architecture."""
    kept, rest = list[str](), iter(options)
    for option in rest:
        name, equals, _ = option.partition("=")
        if name in _TARGETS:
            if not equals:
                next(rest, None)
            continue
        kept.append(option)
    return kept

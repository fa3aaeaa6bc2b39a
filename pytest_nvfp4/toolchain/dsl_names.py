"""Names that a program takes from CuTe DSL and that the installed version does not have."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Final

from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, installed_dsl_version

_IMPORTED = re.compile(r"cannot import name '(?P<name>\w+)' from ")
_KNOWN: Final = {
    ("cutlass.cute.nvgpu.common", "OpError"): (
        "4.4",
        "in 4.8 ops raise DSLUserCodeError; cutlass.base_dsl.common.DSLBaseError is the base of both, "
        "in either version",
    )
}
"""Names by module: a version that has the name, and what stands in its place (read in the wheels of 4.4.0, 4.8.1)."""


def missing_name(error: BaseException) -> str:
    """Return what to do about an import or attribute that the installed DSL does not have; empty for another error."""
    module, name = _missing(error)
    version = installed_dsl_version()
    if module.partition(".")[0] != "cutlass" or version is None:
        return ""
    what = f"{module} has no {name}" if name else f"there is no {module}"
    said = f"in the installed {DSL_DISTRIBUTION} {version} {what}: "
    if (known := _KNOWN.get((module, name))) is not None:
        older, instead = known
        return f"{said}it is written for DSL {older} ({instead}); change it, or install {DSL_DISTRIBUTION}=={older}.*"
    return f"{said}it is written for another version; change it, or install that version"


def _missing(error: BaseException) -> tuple[str, str]:
    """Return the module and the name that an error is about; no name if the module itself is missing."""
    if isinstance(error, ModuleNotFoundError):
        return ("", "") if error.name == "cutlass" else (error.name or "", "")
    if isinstance(error, ImportError) and (found := _IMPORTED.match(str(error))) is not None:
        return error.name or "", found["name"]
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__, error.name or ""
    return "", ""

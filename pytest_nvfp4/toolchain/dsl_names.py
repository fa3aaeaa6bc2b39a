"""Names that a program takes from CuTe DSL and that the installed version lacks, and which versions have them."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Final

from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, installed_dsl_version

_IMPORTED = re.compile(r"cannot import name '(?P<name>\w+)' from ")
_TABLE: Final = "dsl_names.json"
"""Names that some versions lack, by the versions that have them; written by ``selfcheck.dsl_names``."""
_INSTEAD: Final = {
    ("cutlass.cute.nvgpu.common", "OpError"): "in 4.8 ops raise DSLUserCodeError; cutlass.base_dsl.common.DSLBaseError "
    "is the base of both, in either version",
}
"""Names by module, with what stands in their place."""


def missing_name(error: BaseException) -> str:
    """Return what to do about an import or attribute that the installed DSL does not have; empty for another error."""
    module, name = _missing(error)
    version = installed_dsl_version()
    if module.partition(".")[0] != "cutlass" or version is None:
        return ""
    what = f"{module} has no {name}" if name else f"there is no {module}"
    said = f"in the installed {DSL_DISTRIBUTION} {version} {what}: "
    having = [each for each in versions_with(module, name) if _line(each) != _line(version)]
    if not having:
        return f"{said}it is written for another version; change it, or install that version"
    instead = f" ({_INSTEAD[module, name]})" if (module, name) in _INSTEAD else ""
    listed = ", ".join(having)
    return (
        f"{said}it is written for another version{instead}; of those that are known, {listed} "
        f"{'has' if len(having) == 1 else 'have'} it: change it, or install {DSL_DISTRIBUTION}=={_line(having[-1])}.*"
    )


def versions_with(module: str, name: str = "") -> list[str]:
    """Return which of the known versions have a name, oldest first; none if that is not known."""
    return [
        version
        for versions, modules in _names().items()
        if module in modules and name in modules[module].split(" ")
        for version in versions.split(" ")
    ]


@cache
def _names() -> dict[str, dict[str, str]]:
    """Return the names of each module, in one text, by the versions that have them; the empty name is the module."""
    names: dict[str, dict[str, str]] = json.loads(files(__package__).joinpath(_TABLE).read_text("utf-8"))["names"]
    return names


def _line(version: str) -> str:
    """Return the line of releases of a version: 4.8 of 4.8.1."""
    return ".".join(version.split(".")[:2])


def _missing(error: BaseException) -> tuple[str, str]:
    """Return the module and the name that an error is about; no name if the module itself is missing."""
    if isinstance(error, ModuleNotFoundError):
        return ("", "") if error.name == "cutlass" else (error.name or "", "")
    if isinstance(error, ImportError) and (found := _IMPORTED.match(str(error))) is not None:
        return error.name or "", found["name"]
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__, error.name or ""
    return "", ""

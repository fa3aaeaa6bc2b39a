"""Reading of the section ``[tool.pytest_nvfp4]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_nvfp4.problem import Problem, ProblemError, parse_table
from pytest_nvfp4.settings.accepted import accepted_finding
from pytest_nvfp4.settings.error import SettingsError
from pytest_nvfp4.settings.globs import is_glob
from pytest_nvfp4.settings.kernel import KernelSettings
from pytest_nvfp4.settings.named_problems import resolved
from pytest_nvfp4.settings.project import KernelTable, Settings
from pytest_nvfp4.settings.table import ANY, TableReader

_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_NAME = re.compile(r"[A-Za-z0-9_.+-]*")
_FUNCTION = re.compile(r".+::\w+")
_COMMON_KEYS = (
    *("arch", "problems", "verify-problems", "simulate-problems", "fitted-problem", "benchmark-problems"),
    *("protected", "compile-options", "cost-tolerance", "model-problems", "model-tolerance", "side-stream"),
    *("torch-operators", "readable", "network", "contract"),
)
_KERNEL_KEYS = (*_COMMON_KEYS, "path", "name", "entry", "call")
_TOP_KEYS = (*_COMMON_KEYS, "default-problems", "kernel", "accepted")


def parse(data: Mapping[str, Any], *, file: Path) -> Settings:
    """Return the settings in the content of a pyproject.toml. Raises SettingsError."""
    tool = data.get("tool", {})
    section = tool.get("pytest_nvfp4", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise SettingsError(f"{file}: tool.pytest_nvfp4 must be a table")
    top = TableReader(file, "[tool.pytest_nvfp4]", section)
    top.check_keys(_TOP_KEYS)
    own: dict[str, Problem] = {}
    tables = section.get("problems", {})
    if not isinstance(tables, dict):
        raise top.fail(
            "problems", tables, "a table of named problems, such as problems.small = { m = 96, n = 128, k = 256 }"
        )
    for name, table in tables.items():
        if not _NAME.fullmatch(name) or not name:
            raise top.fail(f"problems.{name}", table, "a name of letters, digits, and . _ + - is expected")
        if not isinstance(table, dict):
            raise top.fail(f"problems.{name}", table, "a table with m, n and k is expected")
        try:
            own[name] = parse_table(name, table)
        except ProblemError as error:
            raise SettingsError(f"{file}: [tool.pytest_nvfp4] problems: {error}") from error
    default = _kernel(top, KernelSettings(), own, "default-problems")
    kernels = section.get("kernel", [])
    if not isinstance(kernels, list) or not all(isinstance(kernel, dict) for kernel in kernels):
        raise top.fail("kernel", kernels, "write each kernel as a [[tool.pytest_nvfp4.kernel]] table")
    read: list[KernelTable] = []
    for index, kernel in enumerate(kernels):
        reader = TableReader(file, f"[[tool.pytest_nvfp4.kernel]] number {index + 1}", kernel)
        reader.check_keys(_KERNEL_KEYS)
        path = reader.text("path", ANY, "a path or glob relative to this file is expected", None)
        if path is None or not is_glob(path):
            raise reader.fail("path", path, "a path or glob relative to this file is expected")
        settings = replace(
            _kernel(reader, default, own, "problems"),
            name=reader.text("name", _NAME, "letters, digits, and . _ + - are expected", "") or "",
            entry=reader.text("entry", _FUNCTION, "FILE::FUNCTION is expected", None),
            call=reader.text("call", _FUNCTION, "FILE::FUNCTION is expected", None),
        )
        if settings.call is not None and settings.own_contract is None:
            raise reader.fail("call", settings.call, 'it requires a contract of your own, contract = "FILE::NAME"')
        read.append(KernelTable(path, settings))
    accepted = section.get("accepted", [])
    if not isinstance(accepted, list) or not all(isinstance(each, dict) for each in accepted):
        raise top.fail("accepted", accepted, "write each accepted finding as a [[tool.pytest_nvfp4.accepted]] table")
    findings = tuple(
        accepted_finding(TableReader(file, f"[[tool.pytest_nvfp4.accepted]] number {number}", each))
        for number, each in enumerate(accepted, 1)
    )
    return Settings(file.parent, file, own, default, tuple(read), findings)


def _kernel(reader: TableReader, base: KernelSettings, own: Mapping[str, Problem], problems_key: str) -> KernelSettings:
    arch = reader.text("arch", _ARCH, "an architecture such as sm_100a", base.arch)
    contract = reader.contract(base.contract)

    def problems(key: str, default: tuple[Problem, ...] | None) -> tuple[Problem, ...] | None:
        names = reader.texts(key, ())
        try:
            return resolved(names, own, contract) if names else default
        except ProblemError as error:
            raise reader.fail(key, list(names), str(error)) from error

    return replace(
        base,
        arch=arch or base.arch,
        contract=contract,
        problems=problems(problems_key, base.problems),
        verify=problems("verify-problems", base.verify),
        simulate=problems("simulate-problems", base.simulate),
        fitted=reader.flag("fitted-problem", base.fitted),
        benchmark=problems("benchmark-problems", base.benchmark),
        protected=reader.texts("protected", base.protected),
        compile_options=reader.texts("compile-options", base.compile_options),
        cost_tolerance=reader.tolerances("cost-tolerance", base.cost_tolerance),
        model=problems("model-problems", base.model) or (),
        model_tolerance=reader.share("model-tolerance", base.model_tolerance),
        side_stream=reader.flag("side-stream", base.side_stream),
        torch_operators=reader.flag("torch-operators", base.torch_operators) or False,
        readable=reader.paths("readable", base.readable),
        network=bool(reader.flag("network", base.network)),
    )

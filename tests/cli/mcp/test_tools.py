"""The command of each tool: arguments are values, and none of them concerns the sandbox or a GPU."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import ValidationError

from pytest_nvfp4.cli.app import app
from pytest_nvfp4.cli.mcp.roots import RefusedError, Roots
from pytest_nvfp4.cli.mcp.tools import TOOLS, Check, CheckTool, Exec, Tool
from pytest_nvfp4.plugin.checks.registry import BUILT_IN

NAME = "--help"
"""Name of a kernel that a careless server would pass as an option."""
FULL: dict[str, dict[str, Any]] = {
    "check": {"kernel": "k.py", "checks": ["races", "model"], "problems": ["--x", "gpumode-0"], "entry": "k.py::f"},
    "races": {"kernel": "k.py", "schedules": 2, "schedule": "late-3", "warnings": True},
    "layouts": {"kernel": NAME, "filter": ["--x"], "problem": "--output=x", "config": "-c", "entry": "f"},
    "diff": {"old": NAME, "new": "k.py", "problem": "--html=x", "fail_on": "different"},
    "cost": {"kernel": NAME, "problem": "--output=x", "config": "--json"},
    "model": {"kernel": NAME, "what_if": True},
    "profile_show": {"report_file": NAME, "launches_of": "--output=x"},
    "exec": {"file": NAME, "arguments": ["--device", "local", ""], "races": True},
}  # fmt: skip


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A root with two kernels."""
    for name in (NAME, "k.py"):
        (tmp_path / name).write_text("")
    return Roots((tmp_path,))


def words(tool: type[Tool], roots: Roots, folder: Path, **arguments: Any) -> list[str]:
    """The command of a tool."""
    return list(tool.model_validate(arguments).words(roots, folder))


def parsed(arguments: list[str]) -> tuple[click.Command, dict[str, Any]]:
    """The command and its parameters, as click reads them."""
    command: click.Command = app
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None
        command, arguments = found, arguments[1:]
    return command, command.make_context("x", list(arguments), resilient_parsing=False).params


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_arguments_are_values_and_never_options(tool: type[Tool], roots: Roots, tmp_path: Path) -> None:
    module, *arguments = words(tool, roots, tmp_path, **FULL[tool.name])
    kernel = str(tmp_path / ("k.py" if tool.report else NAME))
    if module == "pytest":
        assert arguments.index(kernel)
        assert not {"--x", "gpumode-0"} & set(arguments)
        return
    command, values = parsed(arguments)
    assert import_module(module)
    given = [str(value) for value in values.values()]
    assert any(kernel in value for value in given)
    assert values.get("output") is None
    assert values.get("page") is None
    if tool is Exec:
        assert values["device"] == "sim"
        assert values["arguments"] == ("--device", "local", "")
    assert command.name


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_no_argument_concerns_the_sandbox_a_remote_or_a_file_to_write(tool: type[Tool]) -> None:
    names = set(tool.model_fields)
    assert not {name for name in names if any(word in name for word in ("sandbox", "remote", "output", "device"))}
    for more in ({"sandbox": "off"}, {"options": ["--x"]}):
        with pytest.raises(ValidationError):
            tool.model_validate({**FULL[tool.name], **more})


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_explains_itself(tool: type[Tool]) -> None:
    assert len((tool.__doc__ or "").strip()) > 60
    schema = tool.model_json_schema()
    assert schema["additionalProperties"] is False
    assert FULL[tool.name].keys() <= schema["properties"].keys()


def test_the_checks_are_those_of_the_plugin_that_need_no_gpu() -> None:
    assert set(Check.__args__) == {check.name for check in BUILT_IN} - {"benchmark", "search"}


def test_pytest_runs_no_code_of_the_repository(roots: Roots, tmp_path: Path) -> None:
    arguments = words(CheckTool, roots, tmp_path, kernel="k.py")
    for option in ("--noconftest", "-ppytest_nvfp4.plugin.kernels_only", "-oaddopts=", "-opythonpath="):
        assert option in arguments
    assert not any("snapshot-update" in word for word in arguments)


@pytest.mark.parametrize("name", [NAME, "k[0].py", "a::b.py"])
def test_a_path_that_pytest_reads_otherwise_is_refused(roots: Roots, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(RefusedError, match="pytest takes"):
        words(CheckTool, roots, tmp_path, kernel=name)


@pytest.mark.parametrize("arguments", [{}, {"file": "k.py", "code": "1"}, {"code": "1", "arguments": ["a\0"]},
                                       {"code": "1", "format": "json"}, {"file": "../k.py"}])  # fmt: skip
def test_a_program_is_a_file_or_code(roots: Roots, tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        words(Exec, roots, tmp_path, **arguments)


@pytest.mark.parametrize("text", ["sm_100a --output=x", "", "x" * 2000])
def test_a_value_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        CheckTool.model_validate({"kernel": "k.py", "arch": text})

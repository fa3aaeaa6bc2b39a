"""Call a kernel's entry, or its functions under GPU MODE's contract."""

from __future__ import annotations

import inspect
from types import ModuleType

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain.worker import contract
from pytest_nvfp4.toolchain.worker.session import TraceSession


def call_entry(session: TraceSession, module: ModuleType, name: str) -> object:
    """Call the configured entry with no argument or the problem's sizes; None after a reported finding."""
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        session.report(
            Finding(
                "entry",
                f"entry {session.entry[0] if session.entry else module.__file__}::{name} is not a function; the file "
                f"defines {', '.join(known) or 'no function'}",
            )
        )
        return None
    if session.call is not None:
        return function(*contract.make_arguments(session.call))
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if len(required) > 1:
        names = ", ".join(parameter.name for parameter in required)
        session.report(
            Finding(
                "entry",
                f"entry {name}({names}) cannot be called: an entry takes no argument, or the problem as a list of "
                "(m, n, k, l); wrap it in a function that supplies the rest",
            )
        )
        return None
    if not required:
        return function()
    if required[0].kind is required[0].KEYWORD_ONLY:
        return function(**{required[0].name: session.sizes})
    return function(session.sizes)


def call_contract(session: TraceSession, module: ModuleType) -> object:
    """Call ``compile_kernel`` and ``custom_kernel`` as GPU MODE does; None after a reported finding."""
    custom = getattr(module, "custom_kernel", None)
    if not callable(custom):
        session.report(
            Finding(
                "contract",
                f"{session.kernel.name} defines no custom_kernel(data) and no entry is configured: add "
                '`entry = "FILE::FUNCTION"` for it to [tool.pytest_nvfp4] in pyproject.toml, or pass --nvfp4-entry',
            )
        )
        return None
    if (finding := contract.uncallable(custom)) is not None:
        session.report(finding)
        return None
    results: list[object] = []
    if (
        session.call is not None
        and session.call["compiles"]
        and callable(prepare := getattr(module, "compile_kernel", None))
    ):
        results.append(contract.prepare(prepare, session.sizes))
    session.stage("run")
    results.append(custom(*contract.make_arguments(session.call)))
    return results

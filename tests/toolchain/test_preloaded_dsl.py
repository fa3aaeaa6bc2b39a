"""A job that imports a preloaded DSL finds the same settings and hooks as one that imports it for the first time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.host import redirect

pytestmark = pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs the DSL")

_PROGRAM = """
import os, sys, warnings
if sys.argv[1] == "preloaded":
    import pytest_nvfp4.toolchain.preloaded_dsl
    assert not [name for name in sys.modules if name.partition(".")[0] == "cutlass"]
os.environ.update(pair.split("=", 1) for pair in sys.argv[2:])
import cutlass.cute as cute
import cutlass.base_dsl.dsl as dsl
for kind, one in dsl.DSLSingletonMeta._instances.items():
    settings = {name: getattr(one.envar, name, None) for name in dir(one.envar) if not name.startswith("_")}
    print(kind.__name__, {name: each for name, each in settings.items() if not callable(each)})
print(cute.__spec__.name, sys.modules["cutlass"].__spec__.origin, sys.excepthook, len(warnings.filters))
"""


def _imported(how: str, variables: dict[str, str]) -> str:
    """Return what a process sees that imports the DSL after it has set variables."""
    pairs = [f"{name}={value}" for name, value in variables.items()]
    command = [sys.executable, "-c", _PROGRAM, how, *pairs]
    environ = {name: value for name, value in os.environ.items() if "_DSL_" not in name} | {"PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split(" at 0x")[0]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_the_settings_are_those_of_the_job(tmp_path: Path, arch: str) -> None:
    variables = redirect.environment(tmp_path, arch=arch)
    seen = _imported("preloaded", variables)
    assert arch in seen
    assert str(tmp_path) in seen
    assert seen == _imported("plain", variables)

"""Program that runs a module of this installation and ends with the process that started it."""

from __future__ import annotations

import os
import runpy
import sys

from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.prctl import die_with_parent


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with arguments.

    ``-P`` keeps a file of the working folder from taking the place of an installed module.
    """
    return [sys.executable, "-P", "-m", __name__, module, *arguments]


def main() -> None:
    """Run the module that the first argument names with the others."""
    parent = os.environ.pop(PARENT_VARIABLE, None)  # what this process starts has another parent
    if parent is not None:
        die_with_parent(int(parent))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""Program of a judge's process: pytest or ``nvfp4``, which ends when its judge does.

Started with ``python -P``, so that a module of the repository under test does not take the place of an installed one.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Final

from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.prctl import die_with_parent

_MODULES: Final = {"pytest": "pytest", "nvfp4": "pytest_nvfp4.cli"}


def main() -> None:
    """Run the tool that the first argument names with the others."""
    if parent := os.environ.pop(PARENT_VARIABLE, ""):
        die_with_parent(int(parent))
    tool, *arguments = sys.argv[1:]
    sys.argv = [tool, *arguments]
    runpy.run_module(_MODULES[tool], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

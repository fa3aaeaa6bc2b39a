"""The process of one call of a tool: it runs a module, and ends with the server."""

from __future__ import annotations

import os
import runpy
import sys

from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.prctl import die_with_parent


def main() -> None:
    """Run the module that the first argument names with the arguments behind it."""
    parent = os.environ.pop(PARENT_VARIABLE, None)  # what this process starts has another parent
    if parent is not None:
        die_with_parent(int(parent))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

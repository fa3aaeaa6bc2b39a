"""Report which parts of a wall stand on this machine: ``python -m pytest_nvfp4.isolation.wall.probe``.

It enters a wall in every way that a worker does, and writes the reason for each missing part, and the version of
Landlock, to its result pipe.
"""

from __future__ import annotations

import json
import os

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.wall import enter_from_environment, landlock


def main() -> None:
    """Enter the wall of the environment and report."""
    result = int(taken(RESULT_VARIABLE))
    version = landlock.abi()
    missing = enter_from_environment(keep=[result])
    os.write(result, json.dumps({"landlock": version, "missing": missing}).encode())


if __name__ == "__main__":
    main()

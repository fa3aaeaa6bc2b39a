"""Start a profiler that starts a worker: ``python -m pytest_nvfp4.device.worker.tool_launch COMMAND``.

COMMAND is a JSON array. The profiler runs outside the worker's wall, because it writes the report and must reach the
driver; it ends, with all that it started, when this process does. The worker enters the wall that ``NVFP4_INNER_WALL``
holds (``profile_worker``).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Final

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.wall import WALL_VARIABLE, enter_from_environment

INNER_WALL_VARIABLE: Final = "NVFP4_INNER_WALL"
"""Environment variable with the wall of the worker below the profiler."""


def main() -> None:
    """Put a process above the profiler that ends all others, and become the profiler."""
    result = int(taken(RESULT_VARIABLE))
    inner = taken(INNER_WALL_VARIABLE)
    enter_from_environment(keep=(result,))
    os.environ.pop(PARENT_VARIABLE, None)  # the worker's parent is the profiler
    os.environ |= {RESULT_VARIABLE: str(result), WALL_VARIABLE: inner}
    os.set_inheritable(result, True)
    command = json.loads(sys.argv[1])
    os.execv(command[0], command)


if __name__ == "__main__":
    main()

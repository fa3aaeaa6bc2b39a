"""Become a command behind the wall that the environment describes.

The arguments are a JSON array, the command, and the names of variables that keep the value they have outside: the wall
moves home, caches and temporary files to its folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Final

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE
from pytest_nvfp4.isolation.limits import DEADLINE_VARIABLE, PARENT_VARIABLE
from pytest_nvfp4.isolation.wall import enter_from_environment

_NOT_FOUND: Final = 127


def main() -> None:
    """Enter the wall, and become the command; the exit status is 127 if it cannot be executed."""
    command, kept = json.loads(sys.argv[1])
    values = {name: os.environ[name] for name in kept if name in os.environ}
    enter_from_environment()
    os.environ.update(values)
    for name in (RESULT_VARIABLE, PARENT_VARIABLE, DEADLINE_VARIABLE):
        os.environ.pop(name, None)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, which a program that it becomes would inherit
    try:
        os.execvp(command[0], command)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{command[0]} cannot be executed: {error}\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND)


if __name__ == "__main__":
    main()

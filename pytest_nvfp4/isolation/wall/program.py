"""Run native programs behind the wall that the environment describes, and return how each ended and what it printed.

For tools that read what a kernel's process wrote: a defect of such a tool is then one behind the wall. The argument is
a JSON array of commands. The result is, for each, ``ENDED`` (its status, and the sizes of its standard output and
standard error), which these two follow.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE
from pytest_nvfp4.isolation.wall import enter_from_environment

ENDED: Final = struct.Struct("<iQQ")
Ended = tuple[int, str, str]
"""The status of a program, its standard output and its standard error."""


def ended(data: bytes) -> Iterator[Ended]:
    """Yield what a result says of each command, as far as it is complete."""
    at = 0
    while at + ENDED.size <= len(data):
        status, printed, errors = ENDED.unpack_from(data, at)
        first, at = at + ENDED.size, at + ENDED.size + printed + errors
        if at > len(data):
            return
        middle = first + printed
        yield status, data[first:middle].decode("utf-8", "replace"), data[middle:at].decode("utf-8", "replace")


def main() -> None:
    """Enter the wall, and run the programs one after the other."""
    result = int(os.environ.pop(RESULT_VARIABLE))
    os.set_inheritable(result, False)
    enter_from_environment(keep=(result,))
    with open(result, "wb") as pipe:
        for command in json.loads(sys.argv[1]):
            done = subprocess.run(command, capture_output=True, check=False)
            pipe.write(ENDED.pack(done.returncode, len(done.stdout), len(done.stderr)) + done.stdout + done.stderr)


if __name__ == "__main__":
    main()

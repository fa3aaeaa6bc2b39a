"""What a tool runs in these tests: ``python -m tests.cli.mcp.programs WHAT``, in place of a command of the package."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_nvfp4.cli.mcp.roots import Roots
from pytest_nvfp4.cli.mcp.tools import Tool


class Program(Tool):
    """A tool that runs a part of this module."""

    name = "stand-in"
    what: str
    argument: str = ""

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        del roots, folder
        yield from ("tests.cli.mcp.programs", self.what, "--", self.argument)


class UserProgram(Program):
    """The same as a user's program, whose exit status is no error."""

    name = "stand-in-program"
    program = True


def main() -> None:
    """Do what the first argument names."""
    what, argument = sys.argv[1], sys.argv[-1]
    if what == "flood":
        for _ in range(int(argument)):
            sys.stdout.write("x" * 1_000_000)
    elif what == "hold":  # with a child in a session of its own that holds the same lock
        with Path(argument).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            subprocess.run([sys.executable, "-c", "import time; time.sleep(3600)"], pass_fds=(file.fileno(),),
                           start_new_session=True, check=False)  # fmt: skip
            time.sleep(3600)
    elif what == "json":
        sys.stdout.write(argument)
    elif what == "facts":
        facts = {"argv": sys.argv, "environ": dict(os.environ), "path": sys.path, "cwd": str(Path.cwd())}
        sys.stdout.write(json.dumps(facts))
    elif what == "exit":
        sys.stdout.write(f"said {argument}\n")
        sys.stderr.write("complained\n")
        sys.exit(int(argument))


if __name__ == "__main__":
    main()

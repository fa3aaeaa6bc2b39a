"""A program that runs a loop of stand-ins in a process of its own, which is killed at random file operations.

Arguments: the folder of the loop, a seed, the number of kills, and the most file operations of a process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from tests.loop.stubs import StubJudge, StubLoop, StubReviewer

SETTINGS = {
    "budget": {"iterations": 20},
    "limits": {"no_progress": 20, "infrastructure_failures": 20},
    "worker": {"candidates": 3},
    "judge": {"jobs": 2},
}
_OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"})


def loop_in(root: Path) -> StubLoop:
    """The loop that is killed."""
    loop = StubLoop(root, SETTINGS)
    loop.reviewer, loop.judge = StubReviewer(2), StubJudge(usd=0.25)
    return loop


def killed_after(operations: int, root: Path) -> bool:
    """Run the loop in a process that kills itself before a file operation; False if it ended before."""
    if (child := os.fork()) == 0:
        left = operations

        def count(event: str, _arguments: object) -> None:
            nonlocal left
            if event in _OPERATIONS:
                left -= 1
                if left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        loop_in(root).session(pulse_s=0.01).run()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def main() -> None:
    """Kill the loop as often as asked, and then let it end."""
    root, rng, kills, most = Path(sys.argv[1]), random.Random(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    killed = sum(killed_after(rng.randint(1, most), root) for _ in range(kills))
    end = loop_in(root).session().run()
    sys.stdout.write(f"{killed} {end.status} {end.state.restarts}\n")


if __name__ == "__main__":
    main()

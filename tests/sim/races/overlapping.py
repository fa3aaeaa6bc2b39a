"""Two kernels of which the second may begin before the first has ended, in a process of its own: JSON, a line a pair.

``python -m tests.sim.races.overlapping FOLDER``.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from pathlib import Path

from pytest_nvfp4.host import redirect

CASES = {
    # name: what the second kernel does, what the first one does
    "waits": {},
    "does not wait": {"wait": "never"},
    "one warp waits, and all meet": {"wait": "one, barrier"},
    "one warp waits": {"wait": "one"},
    "waits too late": {"wait": "late"},
    "writes what the first reads, and waits": {"reads": "x", "writes": "x"},
    "writes what the first reads": {"reads": "y", "writes": "x", "wait": "never"},
    "touches nothing of the first's": {"reads": "y", "writes": "z", "wait": "never"},
    "reads what the first reads": {"reads": "x", "writes": "z", "wait": "never"},
    "is not let start early": {"wait": "never", "lets": False},
    "is not let start early, and waits": {"lets": False},
    "writes what the first has read": {"reads": "y", "writes": "x", "wait": "never", "lets": False},
    "is launched without the attribute": {"wait": "never", "pdl": False},
    "waits with one thread for a bulk copy": {"wait": "bulk"},
    "copies in bulk without a wait": {"wait": "bulk, never"},
}


def main() -> None:
    """Run every pair."""
    folder = Path(sys.argv[1])
    os.environ.update(redirect.environment(folder, arch="sm_100a"))

    import torch
    from cutlass.cute.runtime import from_dlpack

    from pytest_nvfp4.device.worker.simulator import simulate
    from tests.sim.races.pair import Pair

    for name, how in CASES.items():
        with simulate(arch="sm_100a", races=True) as session:
            tensors = {key: torch.zeros(128).cuda() for key in ("x", "y", "z", "middle")}
            kind = {key: value for key, value in how.items() if key not in ("reads", "writes")}
            wrapped = {key: from_dlpack(tensor) for key, tensor in tensors.items()}
            pair = Pair(**kind)  # type: ignore[arg-type]
            pair(
                wrapped["x"], wrapped["middle"], wrapped[how.get("reads", "middle")], wrapped[how.get("writes", "y")]  # type: ignore[index]
            )  # fmt: skip
            told = [
                {
                    "kind": one.kind,
                    "message": one.message,
                    "notes": len(one.notes),
                    "lines": _lines(one.message),
                }
                for one in session.findings
            ]
        print("PAIR " + json.dumps({"name": name, "findings": told}), flush=True)  # noqa: T201


def _lines(message: str) -> list[str]:
    from tests.sim.races.seed import places

    return places(
        {"message": message},
        lambda _, number: linecache.getline(str(Path(__file__).with_name("pair.py")), number).strip(),
    )


if __name__ == "__main__":
    main()

"""The repository of the forty candidates: a kernel with one stage and one buffer of C, its settings, and a loop."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.loop.proof.candidates import KERNEL, STEPS, constants
from tests.loop.repositories import make_repository

_ROOT = Path(__file__).parents[3]
_STRUCTURE = "tests/sim/mutants/structures/epilogue_smem.py"
_PROGRAM = ("tests/loop/proof/worker.py", "tests/loop/proof/candidates.py")
_CHEATS = ("tests/hostile/programs/shared/torch_gemm.py", "tests/hostile/programs/shared/numpy_gemm.py")

SETTINGS = f"""\
[tool.pytest.ini_options]
nvfp4_kernels = ["{KERNEL}"]

[tool.pytest_nvfp4]
problems.small = {{ m = 136, n = 128, k = 768 }}

[[tool.pytest_nvfp4.kernel]]
path = "{KERNEL}"
problems = ["small"]
verify-problems = ["small"]
simulate-problems = ["small"]
fitted-problem = false
"""
CONFIG = """\
name = "proof"

[kernel]
file = "{kernel}"
problems = ["256x256x1024"]

[worker]
command = {command}
timeout_s = 15
attempts = 1
readable = [{program}]

[policy]
layouts = "reported"

[judge]
timeout_s = 300

[budget]
iterations = {iterations}

[limits]
no_progress = {iterations}
"""


def start() -> str:
    """Return the kernel that the loop begins with."""
    return constants(STAGES=1, C_STAGES=1)((_ROOT / _STRUCTURE).read_text())


def kernels() -> list[str]:
    """Return the kernel that each step finds, and last the one that all of them leave."""
    found = [start()]
    for step in STEPS:
        promoted = step.outcome == "faster"
        assert step.edit is not None or not promoted
        found.append(step.edit(found[-1]) if promoted and step.edit is not None else found[-1])
    return found


def make(folder: Path) -> Path:
    """Make the repository, and beside it the worker's program; return the repository's folder.

    Raises:
        OSError: A file cannot be written.
    """
    program = folder / "program"
    program.mkdir(parents=True)
    for name in (*_PROGRAM, *_CHEATS):
        shutil.copy(_ROOT / name, program)
    command = [
        sys.executable,
        "-B",
        str(program / "worker.py"),
        "{candidate}",
        "{worktree}",
        "{result}",
        "{iter_dir}",
    ]
    config = CONFIG.format(
        kernel=KERNEL, command=json.dumps(command), program=json.dumps(str(program)), iterations=len(STEPS)
    )
    return make_repository(
        folder / "repository",
        {
            KERNEL: start(),
            "pyproject.toml": SETTINGS,
            "nvfp4-loop.toml": config,
            "test_own.py": "def test_own(): assert True\n",
            "snapshots/own.txt": "committed by people\n",
            ".gitignore": ".nvfp4/\n__pycache__/\n",
        },
    )

"""A loop with a real repository and real workers; only the judge is a stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.machine.assemble import session_of
from pytest_nvfp4.loop.machine.context import Parts
from pytest_nvfp4.loop.machine.session import Session
from pytest_nvfp4.loop.state import StateFolder
from tests.loop.repositories import KERNEL
from tests.loop.stubs import SteadyJudge

WORKER = f"""
import os, pathlib
number = int(os.environ["NVFP4_LOOP_CANDIDATE"])
pathlib.Path("{KERNEL}").write_text(f"STAGES = {{10 + number % 5}}\\n")
"""


def session(top: Path, **budget: object) -> Session:
    """A loop on a repository, with a stand-in for the judge only."""
    config = LoopConfig.model_validate(
        {
            "kernel": {"file": KERNEL},
            "worker": {"command": [sys.executable, "-c", WORKER], "candidates": 2},
            "budget": {"iterations": 3, **budget},
        }
    )
    made = session_of(
        config,
        root=top,
        folder=StateFolder(top / ".nvfp4" / "loop"),
        until_s=None,
        clock=Clock(),
        show=lambda _: None,
    )

    def parts() -> Parts:
        return replace(made.parts(), judge=SteadyJudge())

    return replace(made, parts=parts)

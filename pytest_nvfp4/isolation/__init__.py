"""Run what is not trusted in a process of its own, so that a crash, a hang or a flood stays there."""

from pytest_nvfp4.isolation.outcome import Captured, Outcome
from pytest_nvfp4.isolation.run import run
from pytest_nvfp4.isolation.stream import OnOutput, Streamed, run_streamed

__all__ = ["Captured", "OnOutput", "Outcome", "Streamed", "run", "run_streamed"]

"""Run what is not trusted in a process of its own, so that a crash, a hang or a flood stays there."""

from pytest_nvfp4.isolation.outcome import Captured, Outcome
from pytest_nvfp4.isolation.run import run
from pytest_nvfp4.isolation.stopping import StoppedError, stopped_by
from pytest_nvfp4.isolation.stream import OnOutput, Piece, Streamed, hand_over, run_streamed, streamed
from pytest_nvfp4.isolation.worker import Worker

__all__ = [
    "Captured",
    "OnOutput",
    "Outcome",
    "Piece",
    "StoppedError",
    "Streamed",
    "Worker",
    "hand_over",
    "run",
    "run_streamed",
    "stopped_by",
    "streamed",
]

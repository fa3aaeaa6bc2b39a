"""Run untrusted code in processes whose crash, hang or flood of output stays within them."""

from pytest_nvfp4.isolation.cancellation import StoppedError, stopped_by
from pytest_nvfp4.isolation.outcome import Captured, Outcome, ProcessEnd
from pytest_nvfp4.isolation.run import run
from pytest_nvfp4.isolation.stream import OnOutput, OutputChunk, forward_output, streamed
from pytest_nvfp4.isolation.worker import Worker

__all__ = [
    "Captured",
    "OnOutput",
    "Outcome",
    "OutputChunk",
    "ProcessEnd",
    "StoppedError",
    "Worker",
    "forward_output",
    "run",
    "stopped_by",
    "streamed",
]

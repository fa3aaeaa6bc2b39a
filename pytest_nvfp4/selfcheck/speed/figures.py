"""Figures of a benchmark and the machine that they belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from pytest_nvfp4.cli.doctor.packages import version_of
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cores import cores
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION

_TIMEOUT_S = 900


@dataclass(frozen=True)
class Kernel:
    """The file of a kernel to measure, and the architecture to compile for."""

    file: Path
    arch: str


def timed(
    command: Sequence[str], *, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[float, str]:
    """Return the seconds and the standard output of a process.

    Raises:
        InputError: The exit code is not 0.
    """
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        last = " | ".join((done.stdout + done.stderr).strip().splitlines()[-6:])
        raise InputError(f"{' '.join(command[1:])} ended with exit code {done.returncode}: {last}")
    return seconds, done.stdout


@dataclass(frozen=True)
class Figure:
    """A measured quantity.

    Attributes:
        name: Name for programs.
        what: Description for readers.
        unit: Unit of the samples.
        samples: Measurement of each round.
        baseline: Measurement of each round of the quantity that is subtracted; empty for none.
        against: Description of the baseline.
    """

    name: str
    what: str
    unit: str
    samples: Sequence[float]
    baseline: Sequence[float] = ()
    against: str = ""

    @property
    def value(self) -> float:
        """Median of the samples, less that of the baseline.

        Rounds alternate between the two, so that a machine that becomes slower slows both.
        """
        return median(self.samples) - (median(self.baseline) if self.baseline else 0.0)

    def text(self) -> str:
        """Return the figure in one line."""
        number = f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:.3f}"
        spread = f"{min(self.samples):.4g} .. {max(self.samples):.4g}"
        detail = f"median of {len(self.samples)}, {spread}"
        if self.baseline:
            detail = f"{median(self.samples):.3f} less {median(self.baseline):.3f} for {self.against}; {detail}"
        return f"{self.what:<58} {number:>10} {self.unit:<12} ({detail})"

    def to_json(self) -> dict[str, object]:
        """Return the figure as JSON-ready values."""
        return {**asdict(self), "value": self.value, "samples": [*self.samples], "baseline": [*self.baseline]}


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of a machine that its speed depends on.

    Attributes:
        cpu: Model of the CPU.
        cores: Number of cores that this process may use.
        load: Average number of runnable processes in the last minute, before the measurements; None if unknown.
        system: Kernel and architecture.
        python: Version of Python.
        pytest: Version of pytest.
        dsl: Version of CuTe DSL.
    """

    cpu: str
    cores: int
    load: float | None
    system: str
    python: str
    pytest: str
    dsl: str

    @classmethod
    def this(cls) -> Machine:
        """Return the current machine and its load."""
        try:
            load: float | None = round(os.getloadavg()[0], 2)
        except OSError:
            load = None
        return cls(
            cpu=_cpu(),
            cores=cores(),
            load=load,
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            pytest=version_of("pytest") or "none",
            dsl=version_of(DSL_DISTRIBUTION) or "none",
        )

    @property
    def busy(self) -> bool:
        """Whether other processes use the cores, so that durations are too high."""
        return self.load is not None and self.load > self.cores / 2

    def __str__(self) -> str:
        busy = " (busy: figures may be too high)" if self.busy else ""
        load = "" if self.load is None else f", load {self.load}{busy}"
        versions = f"Python {self.python}, pytest {self.pytest}, CuTe DSL {self.dsl}"
        return f"{self.cpu}, {self.cores} cores{load}; {self.system}; {versions}"

    def to_json(self) -> dict[str, object]:
        """Return the machine as JSON-ready values."""
        return {**asdict(self), "busy": self.busy}


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"model name", "Model", "Hardware"} and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown CPU"

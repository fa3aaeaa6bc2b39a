"""Which machine a figure belongs to."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_nvfp4.cli.doctor.packages import version_of
from pytest_nvfp4.cores import cores
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION


@dataclass(frozen=True, slots=True)
class Machine:
    """What has a say in how fast something is.

    Attributes:
        cpu: The CPU's model.
        cores: Cores that this process may use.
        load: Processes that wanted to run in the last minute, before the measurements; None where not known.
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
        """This one, now."""
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
        """Whether others were using the cores, so that figures come out too high."""
        return self.load is not None and self.load > self.cores / 2

    def __str__(self) -> str:
        load = (
            "" if self.load is None else f", load {self.load}{' (busy: figures may be too high)' if self.busy else ''}"
        )
        return (
            f"{self.cpu}, {self.cores} cores{load}; {self.system}; Python {self.python}, pytest {self.pytest}, "
            f"CuTe DSL {self.dsl}"
        )

    def to_json(self) -> dict[str, object]:
        """The machine as JSON-ready values."""
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

"""The metrics that a chip has, by NVIDIA's own list: ``libnvperf_host``, which needs no GPU.

A name that a chip lacks is said, instead of being read as zero: ``sm__pipe_tensor_op_hmma_cycles_active`` exists on
GH100 and not on GB100. The library comes with nvidia-cuda-cupti (which torch installs), with Triton, with ncu-report
and with Nsight Compute. Structures: ``nvperf_host.h`` and ``nvperf_cuda_host.h``; it runs in a process behind a wall.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from pytest_nvfp4 import isolation
from pytest_nvfp4.device.job import Model
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import Name
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.temporary import temporary_folder

CHIPS: Final = {"sm_90": "GH100", "sm_100": "GB100", "sm_103": "GB110", "sm_120": "GB202", "sm_89": "AD102"}
"""Chips of libnvperf_host by architecture."""
_WORKER: Final = "pytest_nvfp4.profile.chip_worker"
_LIBRARY: Final = "libnvperf_host.so"
_ROLLUPS: Final = ("sum", "avg", "min", "max")
_TIMEOUT_S: Final = 60.0


class ChipMetrics(Model):
    """The metrics of a chip: ratios; counters and throughputs, which have ``.sum``, ``.avg``, ``.min``, ``.max``."""

    chip: Name
    counters: Annotated[frozenset[Name], Field(max_length=100_000)]
    ratios: Annotated[frozenset[Name], Field(max_length=100_000)]
    throughputs: Annotated[frozenset[Name], Field(max_length=100_000)]

    def lacks(self, name: str) -> str | None:
        """Return why the chip has no metric of a name, None if it has it or if the name is none of the hardware.

        Launch attributes (``launch__``), device attributes, sampled and instrumented metrics are made by ncu itself,
        and are not on the list.
        """
        base, _, rollup = name.partition(".")
        if base.startswith(_BY_NCU):
            return None
        if base in self.counters or base in self.throughputs:
            first = rollup.partition(".")[0]
            wrong = rollup and first not in _ROLLUPS
            return f"{base} has no rollup {first!r}: it has {', '.join(_ROLLUPS)}" if wrong else None
        if base in self.ratios:
            return None
        return f"{self.chip} has no metric {base}"


_BY_NCU: Final = (
    "launch__",
    "device__",
    "nvlink__",
    "numa__",
    "profiler__",
    "smsp__pcsamp",
    "group:",
    "regex:",
    "breakdown:",
    "pmsampling:",
    "inst_executed",
    "memory_",
    "smsp__branch",
    "thread_inst_executed",
    "sm__maximum_",
    "smsp__maximum_",
    "derived__",
    "source:",
)


def library() -> Path | None:
    """Return the newest ``libnvperf_host`` of this environment; None if there is none."""
    found = [path for path in _places() if path.is_file()]
    return found[0] if found else None


def _places() -> Iterator[Path]:
    spec = importlib.util.find_spec("ncu_report")
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent / _LIBRARY
    for distribution in importlib.metadata.distributions():
        if distribution.metadata["Name"].startswith("nvidia-cuda-cupti"):
            for file in distribution.files or ():
                if file.name == _LIBRARY:
                    yield Path(str(file.locate()))
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin:
        yield from sorted(Path(spec.origin).parent.glob(f"backends/nvidia/lib/cupti*/{_LIBRARY}"))


@lru_cache(maxsize=8)
def chip_metrics(chip: str) -> ChipMetrics:
    """Return the metrics of a chip, such as ``GB100``.

    Raises:
        DoorError: There is no list of it here, with the reason.
    """
    source = f"the list of metrics of {chip}"
    path = library()
    if path is None:
        raise DoorError(source, "needs libnvperf_host: pip install nvidia-cuda-cupti, or ncu-report")
    with temporary_folder("metrics") as folder:
        outcome = isolation.run(
            worker(_WORKER, path, chip),
            cwd=Path(folder),
            deadline_s=_TIMEOUT_S,
            wall=Wall(folder=str(folder), readable=(str(path.parent),), memory_bytes=4 << 30),
        )
    if outcome.returncode or outcome.result is None:
        last = (outcome.stderr.text.strip().splitlines() or [outcome.describe_end()])[-1]
        raise DoorError(source, f"cannot be read from {path.name}: {last[:300]}")
    return parsed(ChipMetrics, outcome.result, source=source)


def chip_of(capability: tuple[int, int]) -> str | None:
    """Return the chip of a compute capability; None if it is not known here."""
    return CHIPS.get(f"sm_{capability[0]}{capability[1]}")

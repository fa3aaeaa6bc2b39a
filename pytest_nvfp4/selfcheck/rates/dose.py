"""Kernels that are slower by a known amount: the user's kernel, followed by a spin of some clock cycles.

The user's kernel is unchanged. A wrapper beside it calls it and always launches a spin after it: the arms of an
experiment differ only in the length of the spin, so the launch of a second kernel cancels. The number of a call
determines its arm, and the arms alternate: every round of one arm has one of each other arm a millisecond away.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.bench.stats import Floats
from pytest_nvfp4.device.job import KernelSpec, SourceFile

FRAME = 128
"""Number of calls that mark the beginning of a schedule: a pattern of long and short spins."""
_MOST_UNTIMED = 64
_WRAPPER = "dosed_by_nvfp4_validate.py"
_LEAST_SPIN = 1


class DoseError(RuntimeError):
    """Measured times without the injected doses."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Spins that the calls of a wrapped kernel add.

    Attributes:
        cycles: Clock cycles of each arm's spin.
        frame_cycles: Clock cycles of the frame's long spins.
        order: Arm of each call after the frame, a permutation of all arms for every period.
    """

    cycles: tuple[int, ...]
    frame_cycles: int
    order: tuple[int, ...]

    @classmethod
    def make(cls, cycles: Sequence[int], *, frame_cycles: int, periods: int, seed: int) -> Schedule:
        """Return a schedule in which every period holds each arm once, in a random order."""
        draw = random.Random(f"schedule/{seed}")
        order: list[int] = []
        for _ in range(periods):
            period = list(range(len(cycles)))
            draw.shuffle(period)
            order += period
        return cls(tuple(max(_LEAST_SPIN, count) for count in cycles), max(_LEAST_SPIN, frame_cycles), tuple(order))

    @property
    def arms(self) -> int:
        """Number of arms."""
        return len(self.cycles)

    @property
    def frame(self) -> tuple[bool, ...]:
        """Whether each call of the frame has a long spin; the random pattern matches no shift of itself."""
        draw = random.Random("frame")
        return tuple(draw.random() < 0.5 for _ in range(FRAME))

    @property
    def rounds(self) -> int:
        """Number of timed rounds that hold the whole schedule."""
        return FRAME + len(self.order)

    def spins(self) -> list[int]:
        """Return the cycles of each call's spin."""
        short = self.cycles[0]
        return [self.frame_cycles if long else short for long in self.frame] + [self.cycles[arm] for arm in self.order]

    def split(self, device_us: Sequence[float]) -> list[Floats]:
        """Return the rounds of each arm by period: round i of all arms belongs to one period.

        Args:
            device_us: Device times of a job's rounds, without those of earlier untimed calls (warm-up), whose number
                follows from the position of the frame.

        Raises:
            DoseError: The frame is not found, so the arms of the rounds are unknown.
        """
        times = np.asarray(device_us, dtype=np.float64)
        start = self._begin(times)
        body = times[start:]
        periods = min(len(self.order), body.size) // self.arms
        order = np.array(self.order[: periods * self.arms]).reshape(periods, self.arms)
        table = body[: periods * self.arms].reshape(periods, self.arms)
        return [table[order == arm] for arm in range(self.arms)]

    def _begin(self, times: Floats) -> int:
        """Return the index of the first round after the frame: the shift at which most rounds match its pattern."""
        pattern = np.array(self.frame)
        scores = []
        for untimed in range(_MOST_UNTIMED + 1):
            part, long = times[: FRAME - untimed], pattern[untimed:]
            if part.size < long.size or not long.any() or long.all():
                scores.append(0.0)
                continue
            middle = (np.median(part[long]) + np.median(part[~long])) / 2
            scores.append(float(np.mean((part > middle) == long)))
        best = int(np.argmax(scores))
        if scores[best] < 0.95:
            raise DoseError(
                f"the {FRAME} marked rounds that open the schedule were not found (the best position matches "
                f"{100 * scores[best]:.0f} % of them): the injected spins do not show in the device times, because the "
                "kernel was not called once a round, or the spin did not run on the timed stream"
            )
        return FRAME - best


def _source(kernel: str, schedules: dict[tuple[tuple[int, int, int, int], ...], list[int]]) -> str:
    return f'''"""Call the kernel beside this file, then spin for the cycles of the call's number."""

import importlib
import importlib.util
import pathlib
import sys

import torch

SPINS = {schedules!r}
CALLS = dict.fromkeys(SPINS, 0)


def _load():
    path = pathlib.Path(__file__).with_name({kernel!r})
    if __package__:
        return importlib.import_module(__package__ + "." + path.stem)
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.stdlib_module_names else "dosed_kernel"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_kernel = _load()
if hasattr(_kernel, "compile_kernel"):
    compile_kernel = _kernel.compile_kernel


def custom_kernel(data):
    returned = _kernel.custom_kernel(data)
    sizes = tuple(tuple(size) for size in data[3])
    number = CALLS[sizes]
    CALLS[sizes] = number + 1
    spins = SPINS[sizes]
    torch.cuda._sleep(spins[number % len(spins)])
    return returned
'''


def dosed(kernel: KernelSpec, schedules: dict[tuple[tuple[int, int, int, int], ...], Schedule]) -> KernelSpec:
    """Return the kernel with a wrapper that follows a schedule for each problem.

    Args:
        kernel: The user's kernel.
        schedules: Schedules by the sizes of a problem.
    """
    folder, _, name = kernel.main.rpartition("/")
    path = f"{folder}/{_WRAPPER}" if folder else _WRAPPER
    text = _source(name, {sizes: schedule.spins() for sizes, schedule in schedules.items()})
    wrapper = SourceFile(path=path, text=text, sha256=hashlib.sha256(text.encode()).hexdigest())
    return KernelSpec(
        files=(*(file for file in kernel.files if file.path != path), wrapper),
        main=path,
        entry=kernel.entry,
        arch=kernel.arch,
        compile_options=kernel.compile_options,
    )

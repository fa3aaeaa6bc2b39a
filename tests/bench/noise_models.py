"""Synthetic rounds: what a GPU's clock and its neighbours do to times, in microseconds about 20."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class LogNormal:
    """Independent rounds."""

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def session(self, rng: np.random.Generator, rounds: int) -> NDArray[np.float64]:
        return 20 * rng.lognormal(0, self.sigma, rounds)

    def interleaved(self, rng: np.random.Generator, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.session(rng, rounds), self.session(rng, rounds)


class HeavyTails(LogNormal):
    """One round in twenty is up to three times as long: an interrupt, a page, a neighbour."""

    def session(self, rng: np.random.Generator, rounds: int) -> NDArray[np.float64]:
        tail = np.where(rng.random(rounds) < 0.05, 1 + 2 * rng.random(rounds), 1.0)
        return super().session(rng, rounds) * tail


class Wave:
    """A swing that both kernels of an interleaved session share, with noise of each round's own on top."""

    def __init__(self, own: float = 0.005) -> None:
        self.own = own

    def swing(self, rng: np.random.Generator, steps: int) -> NDArray[np.float64]:
        raise NotImplementedError

    def session(self, rng: np.random.Generator, rounds: int) -> NDArray[np.float64]:
        return 20 * np.exp(self.swing(rng, rounds)) * rng.lognormal(0, self.own, rounds)

    def interleaved(self, rng: np.random.Generator, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        swing = self.swing(rng, 2 * rounds)
        first = rng.integers(2, size=rounds)  # which of the pair comes first
        at = 2 * np.arange(rounds)
        before, after = swing[at + first], swing[at + 1 - first]
        noise = rng.lognormal(0, self.own, (2, rounds))
        return 20 * np.exp(before) * noise[0], 20 * np.exp(after) * noise[1]


class Trend(Wave):
    """A chip that warms up: times rise by about 6 % over a session."""

    def swing(self, rng: np.random.Generator, steps: int) -> NDArray[np.float64]:
        return np.linspace(0, rng.uniform(0.05, 0.07), steps)


class Wander(Wave):
    """A clock that wanders by 2 %, with a memory of many rounds (an autoregressive process)."""

    def __init__(self, memory: float = 0.9, sigma: float = 0.02, own: float = 0.005) -> None:
        super().__init__(own)
        self.memory, self.sigma = memory, sigma

    def swing(self, rng: np.random.Generator, steps: int) -> NDArray[np.float64]:
        kicks = rng.normal(size=steps) * self.sigma * np.sqrt(1 - self.memory**2)
        kicks[0] = rng.normal() * self.sigma
        swing = np.empty(steps)
        level = 0.0
        for index, kick in enumerate(kicks):
            level = self.memory * level + kick
            swing[index] = level
        return swing


class TwoClocks(Wave):
    """Two clocks 8 % apart; the chip stays with one for so many rounds on average."""

    def __init__(self, stay: int = 20, own: float = 0.005) -> None:
        super().__init__(own)
        self.stay = stay

    def swing(self, rng: np.random.Generator, steps: int) -> NDArray[np.float64]:
        flips = rng.random(steps) < 1 / self.stay
        state = (np.cumsum(flips) + rng.integers(2)) % 2
        return np.log1p(0.08) * state

"""The configuration of ``triton.autotune`` that the user picks with the compile option ``--autotune``.

``--autotune 1`` picks by index, counted from 0, ``--autotune BM=64,num_warps=8`` by values. A kernel's name and a colon
before it (``--autotune gemm:1``) restrict it to that kernel; else it holds for each tuned kernel. Where several
configurations have the values, tuning is left to these.
"""

from __future__ import annotations

import functools
import importlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.after_import import after_import

OPTION: Final = "--autotune"
_FORMS: Final = f"{OPTION} INDEX, {OPTION} KEY=VALUE,KEY=VALUE or {OPTION} KERNEL:..."


class PickError(ValueError):
    """An option that picks no configuration."""


@dataclass(frozen=True, slots=True)
class Pick:
    """What one option picks.

    Attributes:
        text: The option's value.
        kernel: Name of the kernel; empty for all.
        index: Index of the configuration; None for a pick by values.
        values: Values of the configuration, as text, by key.
    """

    text: str
    kernel: str
    index: int | None
    values: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> Pick:
        """Parse the value of an option.

        Raises:
            PickError: it has another form.
        """
        kernel, _, what = text.rpartition(":")
        if what.isdecimal():
            return cls(text, kernel, int(what))
        pairs = [part.partition("=") for part in what.split(",")]
        if not all(key.strip() and value.strip() for key, _, value in pairs):
            raise PickError(f"{OPTION} {text!r} picks no configuration of triton.autotune: write {_FORMS}")
        return cls(text, kernel, None, tuple((key.strip(), value.strip()) for key, _, value in pairs))

    def takes(self, index: int, config: Any) -> bool:
        """Return whether this picks a configuration, which has an index among those of its kernel."""
        if self.index is not None:
            return index == self.index
        has = config.all_kwargs()
        return all(key in has and str(has[key]) == value for key, value in self.values)


@dataclass
class Picks:
    """The picks of a process, and those that have picked a configuration."""

    picks: Sequence[Pick]
    used: set[Pick] = field(default_factory=set)

    def of(self, kernel: str) -> Pick | None:
        """Return the pick for a kernel: one that names it before one for all."""
        fitting = [pick for pick in self.picks if pick.kernel in ("", kernel)]
        return max(fitting, key=lambda pick: len(pick.kernel), default=None)

    def unused(self) -> list[str]:
        """Return a message for each pick that no launched kernel has met."""
        return [
            f"{OPTION} {pick.text} picks a configuration, and no kernel {pick.kernel + ' ' if pick.kernel else ''}with "
            "configurations of triton.autotune was launched: remove the option, or correct the kernel's name"
            for pick in self.picks
            if pick not in self.used
        ]

    def among(self, tuner: Any, configs: list[Any]) -> list[Any]:
        """Return those of a kernel's configurations that are picked; all of them if none of the picks is for it.

        Args:
            tuner: The ``Autotuner`` of the kernel.
            configs: Those of its configurations that are left.

        Raises:
            HostSideError: none of these is picked.
        """
        name = tuner.base_fn.__name__
        pick = self.of(name)
        if pick is None:
            return configs
        self.used.add(pick)
        picked = [each for each in configs if pick.takes(index_of(tuner, each), each)]
        if not picked:
            raise HostSideError(f"{OPTION} {pick.text} picks no configuration of {name}: {_listed(tuner, configs)}")
        return picked

    def apply(self, _triton: ModuleType) -> None:
        """Restrict the configurations of Triton's tuner."""
        tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
        for name, wrap in (("prune_configs", self._pruning), ("run", self._running)):
            setattr(tuner, name, wrap(getattr(tuner, name)))

    def _pruning(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        @functools.wraps(original)
        def prune_configs(tuner: Any, *args: Any, **kwargs: Any) -> list[Any]:
            return self.among(tuner, original(tuner, *args, **kwargs))

        return prune_configs

    def _running(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            self.among(tuner, tuner.configs)  # a kernel with a single one is not tuned
            return original(tuner, *args, **kwargs)

        return run


def install(options: str) -> tuple[Picks, str]:
    """Apply the picks among compile options to this process, and return them with the other options.

    Raises:
        PickError: an option has another form.
    """
    if OPTION not in options:
        return Picks(()), options
    words = shlex.split(options)
    picks: list[Pick] = []
    others: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name != OPTION:
            others.append(word)
            continue
        if not equals and not words:
            raise PickError(f"{OPTION} has no value: write {_FORMS}")
        picks.append(Pick.of(value if equals else words.pop(0)))
    made = Picks(tuple(picks))
    after_import("triton", made.apply)
    return made, shlex.join(others)


def index_of(tuner: Any, config: Any) -> int:
    """Return the index of a configuration among all of its kernel's, -1 for one of another origin."""
    return next((index for index, each in enumerate(tuner.configs) if each is config), -1)


def _listed(tuner: Any, configs: Sequence[Any]) -> str:
    left = [f"{index_of(tuner, config)}: {config}" for config in configs]
    pruned = len(tuner.configs) - len(configs)
    more = f"; its own pruning leaves out {pruned} for these arguments" if pruned else ""
    return f"it has {' | '.join(left)}{more}"

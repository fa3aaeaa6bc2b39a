"""What stands in for Triton's measurements where no time can be measured.

``triton.autotune`` takes the first configuration that compiles and fits the device, of those that the user picks
(``triton_pick``). Until one is found, kernels are compiled and not launched, so that no configuration runs more often
than on a GPU with a cache of results. The functions of ``triton.testing`` that measure call the function once and
return NaN.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from pytest_nvfp4.host.triton_pick import OPTION, Pick, index_of
from pytest_nvfp4.host.triton_updates import updated

_NO_TIME: Final = (math.inf, math.inf, math.inf)
_MEASURING: Final = ("do_bench", "do_bench_cudagraph", "do_bench_proton")


class Chosen(NamedTuple):
    """The configuration of a tuned kernel that is executed, and the kernel's place."""

    kernel: str
    file: str
    line: int
    configuration: str
    number: int
    candidates: int

    def described(self, pick: Pick | None) -> str:
        """Return the choice in words, and its reason: the user's pick, or none."""
        why = (
            f"the first that compiles and fits, because no time can be measured without a GPU ({OPTION} picks another)"
            if pick is None
            else f"which {OPTION} {pick.text} picks"
        )
        return (
            f"{self.kernel} is executed in one of its {self.candidates} configurations, number {self.number} "
            f"(counted from 0), {why}: {self.configuration}"
        )


class Tuning:
    """Choices of configurations.

    Attributes:
        compiling: Whether a configuration is only compiled, and launches are left out.
        chosen: The choices, in order, each once.
        unrestored: File, line and text about each argument that benchmarks on a GPU would leave with another value.
    """

    def __init__(self) -> None:
        self.compiling = False
        self.chosen: dict[Chosen, None] = {}
        self.unrestored: dict[tuple[str, int, str], None] = {}
        self._benchmarked: WeakSet[Any] = WeakSet()
        self._decided: WeakSet[Any] = WeakSet()

    def patches(self, autotuner: type[Any], testing: Any) -> list[tuple[Any, str, Any]]:
        """Return the owner, name and value of each replacement in Triton."""
        return [
            (autotuner, "prune_configs", self._pruning(autotuner.__dict__["prune_configs"])),
            (autotuner, "_bench", self._choosing(autotuner.__dict__["_bench"])),
            (autotuner, "run", self._recording(autotuner.__dict__["run"])),
            *((testing, name, bench) for name in _MEASURING if hasattr(testing, name)),
            (testing, "nvsmi", _nvsmi),
        ]

    def _pruning(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def prune_configs(tuner: Any, kwargs: dict[str, Any]) -> list[Any]:
            self._decided.discard(tuner)
            self._benchmarked.add(tuner)
            tuner.cache_results = False  # no time is measured that another process could use
            return original(tuner, kwargs)

        return prune_configs

    def _choosing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
            if tuner in self._decided:
                return list(_NO_TIME)
            vars(tuner)["do_bench"] = self._compile
            times = original(tuner, *args, config=config, **meta)
            if times[0] != math.inf:
                self._decided.add(tuner)
            return times

        return _bench

    def _recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            self._benchmarked.discard(tuner)
            returned = original(tuner, *args, **kwargs)
            if len(tuner.configs) > 1:
                if tuner in self._benchmarked:
                    self._warn_of_updates(tuner, returned)
                code, config = tuner.base_fn.__code__, tuner.best_config
                place = (tuner.base_fn.__name__, code.co_filename, code.co_firstlineno)
                self.chosen[Chosen(*place, str(config), index_of(tuner, config), len(tuner.configs))] = None
            return returned

        return run

    def _warn_of_updates(self, tuner: Any, compiled: Any) -> None:
        """Warn of arguments that each benchmark on a GPU changes once more, and that the tuner does not restore."""
        if getattr(tuner, "user_defined_pre_hook", False) or tuner.best_config.pre_hook is not None:
            return
        code, restored = tuner.base_fn.__code__, {*tuner.reset_to_zero, *tuner.restore_value}
        for name, line, adds in updated(getattr(compiled, "asm", {}).get("ttir", "")):
            if name in restored:
                continue
            does, way = ("adds to", "reset_to_zero") if adds else ("reads and writes", "restore_value")
            text = (
                f"{tuner.base_fn.__name__} {does} its argument {name}. triton.autotune on a GPU runs each of its "
                f"{len(tuner.configs)} configurations many times on the same memory before the first result, which is "
                f'another one than here unless a further run changes nothing: write {way}=["{name}"]'
            )
            place = (code.co_filename, line or code.co_firstlineno, text)
            if place not in self.unrestored:
                self.unrestored[place] = None
                warnings.warn_explicit(text, RuntimeWarning, *place[:2])

    def _compile(self, call: Callable[[], object], **_: Any) -> list[float]:
        """Compile what a call would launch. Raises what Triton raises for a configuration that does not fit."""
        self.compiling = True
        try:
            call()
        finally:
            self.compiling = False
        return [0.0, 0.0, 0.0]


def _nvsmi(attrs: Sequence[str]) -> list[float]:
    """Replace ``triton.testing.nvsmi``, which returns what nvidia-smi measures."""
    return [math.nan for _ in attrs]


def bench(function: Callable[[], object], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """Replace ``triton.testing.do_bench``: call the function once, and return NaN as its time."""
    function()
    if quantiles is not None:
        times = [math.nan for _ in quantiles]
        return times[0] if len(times) == 1 else times
    return [math.nan] if return_mode == "all" else math.nan

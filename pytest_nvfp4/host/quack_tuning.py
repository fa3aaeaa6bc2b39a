"""What stands in for the measurements of quack's tuner where no time can be measured.

A kernel with ``quack.autotuner.autotune`` takes the first of the configurations that quack leaves for its arguments.
None is timed: quack would warm a GPU up with large products, and call each configuration some 250 times.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from pytest_nvfp4.host.after_import import after_import

_NO_TIME: Final = (math.nan, math.nan, math.nan)


def install(stack: contextlib.ExitStack) -> None:
    """Replace the measurements when quack is imported, until the stack is closed."""

    def replace(module: ModuleType) -> None:
        for owner, name, value in (
            (module, "_gpu_warmup", lambda *_, **__: None),
            (module, "_pick_l2_rotate_count", lambda *_, **__: 1),
            (module.Autotuner, "_bench", lambda *_, **__: list(_NO_TIME)),
            (module.Autotuner, "check_disk_cache", _tuned),
        ):
            if (original := vars(owner).get(name)) is not None:
                setattr(owner, name, value)
                stack.callback(setattr, owner, name, original)

    stack.callback(after_import("quack.autotuner", replace))


def _tuned(_tuner: Any, _key: Any, _configs: Any, tune: Callable[[], None]) -> None:
    """Tune, and keep no times for another process."""
    tune()

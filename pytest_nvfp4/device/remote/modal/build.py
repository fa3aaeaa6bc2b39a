"""Build our app on Modal: for one session, or to be deployed (see ``app``).

Kernels are not trusted: a container has no access to Modal's API and no network, gets no secret and no volume (a cache
that kernels share would let one of them change what another runs), and never answers in pickles.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import modal

from pytest_nvfp4.device.remote.modal.runner import Runner
from pytest_nvfp4.device.remote.modal.settings import (
    APP,
    CPUS,
    MEMORY_MIB,
    SCALEDOWN_S,
    STARTUP_S,
    ModalSettings,
)

_PACKAGE = Path(__file__).resolve().parents[3]
_NOT_SENT = frozenset({"plugin", "cli", "report", "bench", "profile", "loop", "proof", "search", "strategies", "sim"})
"""Parts of this package that a container has no use for: it has a real device, and judges nothing."""


def _left_out(backend: str) -> Callable[[Path], bool]:
    """Says of a file of this package (relative to it, or absolute) whether it stays at home."""
    here = _NOT_SENT - {backend}  # the simulator goes along where it is the container's device

    def stays(path: Path) -> bool:
        inside = path.relative_to(_PACKAGE) if path.is_absolute() else path
        return path.suffix != ".py" or inside.parts[0] in here

    return stays


def image_of(settings: ModalSettings) -> modal.Image:
    """The container's image: CUDA, the versions of torch and the DSL that are installed here, and this package."""
    base = modal.Image.from_registry(settings.image, add_python=settings.python).entrypoint([])
    return base.uv_pip_install(*settings.packages).add_local_python_source(
        "pytest_nvfp4", ignore=_left_out(settings.backend)
    )


def make_app(settings: ModalSettings) -> tuple[modal.App, Any]:
    """The app and its class."""
    made = modal.App(APP, include_source=False)
    runner = made.cls(
        image=image_of(settings),
        gpu=settings.gpu,
        cpu=CPUS,
        memory=MEMORY_MIB,
        min_containers=0,
        max_containers=settings.containers,
        scaledown_window=SCALEDOWN_S,
        timeout=max(60, round(settings.timeout_s)),
        startup_timeout=STARTUP_S,
        retries=0,
        restrict_modal_access=True,
        block_network=True,
        single_use_containers=settings.single_use,
        _experimental_restrict_output=True,
    )(Runner)
    return made, runner

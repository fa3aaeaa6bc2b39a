"""Build of the Modal app, for one session or for a deployment (see `app`).

Kernels are untrusted: a container has no access to Modal's API and no network, receives no secret and no volume (with a
shared cache one kernel could change what another one runs), and never returns pickles.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import modal

from pytest_nvfp4.device.remote.modal.runner import Runner
from pytest_nvfp4.device.remote.modal.settings import APP, CPUS, MEMORY_MIB, SCALEDOWN_S, STARTUP_S, ModalSettings

_PACKAGE = Path(__file__).resolve().parents[3]
_LOCAL_ONLY = frozenset(
    {"plugin", "cli", "report", "bench", "profile", "loop", "proof", "search", "strategies", "selfcheck", "sim"}
)
"""Parts of this package that no container needs: it has a real device, and does not judge results."""


def _ignore(backend: str) -> Callable[[Path], bool]:
    """Return the predicate of files of this package (relative to it, or absolute) that are not uploaded."""
    local = _LOCAL_ONLY - {backend}  # the simulator is uploaded if it is the container's device

    def ignored(path: Path) -> bool:
        relative = path.relative_to(_PACKAGE) if path.is_absolute() else path
        return path.suffix != ".py" or relative.parts[0] in local

    return ignored


def image_of(settings: ModalSettings) -> modal.Image:
    """Return the container's image: CUDA, the locally installed versions of torch and the DSL, and this package."""
    base = modal.Image.from_registry(settings.image, add_python=settings.python).entrypoint([])
    # The source comes last: a change of it then rebuilds no layer of the image.
    return base.uv_pip_install(*settings.packages).add_local_python_source(
        "pytest_nvfp4", ignore=_ignore(settings.backend)
    )


def make_app(settings: ModalSettings) -> tuple[modal.App, Any]:
    """Return the app and its class."""
    app = modal.App(APP, include_source=False)
    runner = app.cls(
        image=image_of(settings),
        gpu=settings.gpu,
        cpu=CPUS,
        memory=MEMORY_MIB,
        min_containers=0,
        max_containers=settings.containers,
        scaledown_window=SCALEDOWN_S,
        timeout=max(60, round(settings.timeout_s)),
        startup_timeout=STARTUP_S,
        retries=0,  # with retries, Modal's client (1.6) repeats an internal failure without limit or delay
        restrict_modal_access=True,
        block_network=True,
        single_use_containers=settings.single_use,
        _experimental_restrict_output=True,
    )(Runner)
    return app, runner

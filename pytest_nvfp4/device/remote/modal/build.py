"""Build our app on Modal: for one session, or to be deployed (see ``app``).

Kernels are not trusted: a container has no access to Modal's API and no network, gets no secret and no volume (a cache
that kernels share would let one of them change what another runs), and never answers in pickles.
"""

from __future__ import annotations

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

_NOT_SENT = ["**/__pycache__", "**/.mypy_cache", "plugin", "cli", "report", "bench"]
"""Parts of this package that a container has no use for."""


def image_of(settings: ModalSettings) -> modal.Image:
    """The container's image: CUDA, the versions of torch and the DSL that are installed here, and this package."""
    base = modal.Image.from_registry(settings.image, add_python=settings.python).entrypoint([])
    return base.uv_pip_install(*settings.packages).add_local_python_source("pytest_nvfp4", ignore=_NOT_SENT)


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

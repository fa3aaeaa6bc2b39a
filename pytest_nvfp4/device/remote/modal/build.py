"""Build of the Modal app, for one session or for a deployment (see `app`).

Kernels are untrusted: a container has no access to Modal's API and no network, receives no secret and no volume (with a
shared cache of compiles one kernel could change what another one runs, and a compile takes seconds), and never returns
pickles.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import modal

from pytest_nvfp4.device.remote.modal.runner import Runner
from pytest_nvfp4.device.remote.modal.settings import APP, SCALEDOWN_S, SLIM, STARTUP_S, ModalSettings
from pytest_nvfp4.device.remote.parts import left_out

_PACKAGE = Path(__file__).resolve().parents[3]
_NCU, _NSYS = "2025.2.1", "2025.5.2"
"""Versions of the profilers in NVIDIA's package registry, which the base image knows. On Modal's B200 the ncu of CUDA
13.3 (2026.2) returns NaN for many counters and 2025.2.1 does not (GPU MODE's kernelbot, pull request 530)."""
_NCU_FOLDER, _NSYS_FOLDER = f"/opt/nvidia/nsight-compute/{_NCU}", f"/opt/nvidia/nsight-systems/{_NSYS}/bin"


def _ignore(backend: str) -> Callable[[Path], bool]:
    """Return the predicate of files of this package (relative to it, or absolute) that are not uploaded."""
    local = left_out(backend)

    def ignored(path: Path) -> bool:
        relative = path.relative_to(_PACKAGE) if path.is_absolute() else path
        return path.suffix != ".py" or relative.parts[0] in local

    return ignored


def image_of(settings: ModalSettings) -> modal.Image:
    """Return the container's image: CUDA (with a GPU), torch and the DSL as installed here, and this package."""
    if settings.image == SLIM:
        base = modal.Image.debian_slim(python_version=settings.python)
    else:
        base = modal.Image.from_registry(settings.image, add_python=settings.python).entrypoint([])
    if settings.profilers:
        base = base.apt_install(f"nsight-compute-{_NCU}", f"nsight-systems-{_NSYS}").run_commands(
            # The base image has an ncu of its own in /usr/local/cuda/bin; the packages set no path.
            f"ln -sf {_NCU_FOLDER}/ncu {_NSYS_FOLDER}/nsys /usr/local/bin/"
        )
    # The source comes last: a change of it then rebuilds no layer of the image.
    return base.uv_pip_install(*settings.packages).add_local_python_source(
        "pytest_nvfp4", ignore=_ignore(settings.backend)
    )


def make_app(settings: ModalSettings, *, idle_s: int = SCALEDOWN_S) -> tuple[modal.App, Any]:
    """Return the app, whose containers end after ``idle_s`` seconds without a call, and its class."""
    app = modal.App(APP, include_source=False)
    runner = app.cls(
        image=image_of(settings),
        gpu=None if settings.simulates else settings.gpu,
        cpu=settings.cpus,
        memory=settings.memory_gib << 10,
        min_containers=0,
        max_containers=settings.containers,
        scaledown_window=idle_s,
        timeout=max(60, round(settings.timeout_s)),
        startup_timeout=STARTUP_S,
        retries=0,  # with retries, Modal's client (1.6) repeats an internal failure without limit or delay
        restrict_modal_access=True,
        block_network=True,
        single_use_containers=settings.single_use,
        _experimental_restrict_output=True,
    )(Runner)
    return app, runner

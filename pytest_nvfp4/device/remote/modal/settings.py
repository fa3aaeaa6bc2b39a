"""Settings of the Modal app: its image, its GPU and its limits."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_nvfp4.device.remote.base import RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.gpus import capability_of

APP = "pytest-nvfp4"
"""Name of the app, and default name of its deployment."""
BACKEND_VARIABLE = "NVFP4_MODAL_BACKEND"
BASE_IMAGE = "nvidia/cuda:13.0.1-devel-ubuntu24.04"
SLIM = "slim"
"""Name of Modal's own small image, for containers without a GPU."""
CPUS, MEMORY_GIB = 4.0, 32
SIM_CPUS, SIM_MEMORY_GIB = 2.0, 8
"""Of a container that simulates: the simulator uses one core, a compile up to 1.4 GB (measured)."""
SCALEDOWN_S = 20
"""Seconds that an idle container stays up: long enough between two checks, short enough to cost little."""
WARM_S = 300
"""Seconds that an idle container of a warmed app stays up, for the next runs."""
STARTUP_S = 600
_GPU = re.compile(r"[A-Za-z0-9-]+!?")
_PACKAGES = (
    *("torch", "nvidia-cutlass-dsl", "numpy", "pydantic", "filelock", "platformdirs"),
    *("nvidia-cuda-nvdisasm", "nvidia-cuda-cuobjdump"),
)
DSL_VARIABLE = "NVFP4_MODAL_DSL"
"""Environment variable with the version of the DSL in the image, for a machine on which none is installed."""


def _pinned(name: str) -> str:
    """Return a requirement on the version that is installed here, so that both sides compile kernels alike."""
    if name == "nvidia-cutlass-dsl" and (chosen := os.environ.get(DSL_VARIABLE)):
        return f"{name}=={chosen}"
    try:
        return f"{name}=={importlib.metadata.version(name).partition('+')[0]}"
    except importlib.metadata.PackageNotFoundError:
        return name


@dataclass(frozen=True, slots=True)
class ModalSettings:
    """Settings of the app of a session or deployment.

    Attributes:
        gpu: One GPU by Modal's name, without ``+``: a ``B200+`` may be a B300, which does not run code for sm_100a.
        simulates: Whether the containers simulate and have no GPU; ``gpu`` is then not rented.
        gpu_capability: Its compute capability, if the name says too little; see `capability_of`.
        containers: Maximum number of containers.
        timeout_s: Time limit of a batch in seconds.
        single_use: Whether a container ends after one batch.
        image: Base image.
        backend: Device of the container, ``cuda``. Others are for tests (see `executor.job_runner`); only the variable
            ``NVFP4_MODAL_BACKEND`` selects them, and their results name them.
        cpus, memory_gib: Cores and memory of a container.
        profilers: Whether the image has nsys and ncu.
        packages: Requirements that are installed into the image.
        python: Version of its Python.
    """

    gpu: str = "B200"
    gpu_capability: str | None = None
    simulates: bool = False
    containers: int = 1
    timeout_s: float = 900.0
    single_use: bool = False
    image: str = BASE_IMAGE
    backend: str = "cuda"
    cpus: float = CPUS
    memory_gib: int = MEMORY_GIB
    profilers: bool = False
    packages: tuple[str, ...] = field(default_factory=lambda: tuple(map(_pinned, _PACKAGES)))
    python: str = field(default_factory=lambda: ".".join(platform.python_version_tuple()[:2]))

    def __post_init__(self) -> None:
        if not _GPU.fullmatch(self.gpu):
            raise RemoteError(
                "setup",
                f"--nvfp4-gpu {self.gpu!r} is not supported: it names more than one kind or number of GPUs",
                "name one GPU, such as B200 (a B200+ may be a B300, which cannot run code for sm_100a)",
            )
        _ = self.capability

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability that the GPU must have; None without a GPU. Raises RemoteError for an unknown GPU."""
        if self.simulates:
            return None
        return capability_of(RemoteOptions(gpu=self.gpu, gpu_capability=self.gpu_capability))

    @property
    def label(self) -> str:
        """Description of the image."""
        profilers = ("profilers",) if self.profilers else ()
        return ", ".join((self.image, *profilers, f"python {self.python}", *self.packages))

    @classmethod
    def of(cls, options: RemoteOptions, environ: Mapping[str, str] = os.environ) -> ModalSettings:
        """Return the settings for the options of a remote. Raises RemoteError."""
        sim = options.simulates
        return cls(
            gpu=options.gpu,
            gpu_capability=options.gpu_capability,
            simulates=sim,
            containers=options.containers,
            timeout_s=options.timeout_s if options.longest_s is None else options.longest_s,
            single_use=options.single_use,
            image=environ.get("NVFP4_MODAL_IMAGE", SLIM if sim else BASE_IMAGE),
            backend=environ.get(BACKEND_VARIABLE, "sim" if sim else "cuda"),
            cpus=options.cpus or (SIM_CPUS if sim else CPUS),
            memory_gib=options.memory_gib or (SIM_MEMORY_GIB if sim else MEMORY_GIB),
            profilers=options.profilers,
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> ModalSettings:
        """Return the settings of a deployment from ``NVFP4_MODAL_GPU``, ``_CONTAINERS``, ...; see `app`.

        Raises:
            RemoteError: A variable has an invalid value.
        """
        gpu = environ.get("NVFP4_MODAL_GPU", "B200")
        sim = gpu.lower() == "none"
        try:
            return cls(
                gpu="B200" if sim else gpu,
                simulates=sim,
                gpu_capability=environ.get("NVFP4_MODAL_GPU_CAPABILITY"),
                containers=int(environ.get("NVFP4_MODAL_CONTAINERS", "1")),
                timeout_s=float(environ.get("NVFP4_MODAL_TIMEOUT", "900")),
                single_use=environ.get("NVFP4_MODAL_SINGLE_USE", "") not in ("", "0"),
                image=environ.get("NVFP4_MODAL_IMAGE", SLIM if sim else BASE_IMAGE),
                backend=environ.get(BACKEND_VARIABLE, "sim" if sim else "cuda"),
                cpus=float(environ.get("NVFP4_MODAL_CPUS", SIM_CPUS if sim else CPUS)),
                memory_gib=int(environ.get("NVFP4_MODAL_MEMORY", SIM_MEMORY_GIB if sim else MEMORY_GIB)),
                profilers=environ.get("NVFP4_MODAL_PROFILERS", "") not in ("", "0"),
            )
        except ValueError as error:
            raise RemoteError("setup", f"a variable NVFP4_MODAL_* is not a number: {error}") from error


_COMPARED = ("torch", "nvidia-cutlass-dsl")


def other_versions(there: Mapping[str, str]) -> str:
    """Describe the packages of a container whose versions differ from this machine's; empty if none matters.

    Kernels are traced here and compiled there: two versions of the DSL would compile two kernels.
    """
    different = []
    for name in _COMPARED:
        here = _pinned(name).partition("==")[2]
        if here and name in there and there[name].partition("+")[0] != here:
            different.append(f"{name} {there[name]}, and this machine has {here}")
    return "; ".join(different)

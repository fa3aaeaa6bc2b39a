"""Options of a remote, described once for pytest and for the ``nvfp4`` command.

Importing this module loads nothing else: pytest declares its options at every start.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options that a remote receives; it refuses those it does not support.

    Attributes:
        target: Text after the colon of ``NAME:TARGET``, such as a host; empty for none.
        gpu: The GPU, by the remote's own name for it.
        gpu_capability: Its compute capability, such as ``10.0``, for a name that this package does not know.
        simulates: Whether the machines simulate: no GPU is rented, and ``gpu`` does not matter.
        cpus, memory_gib: Cores and memory in GiB of each container; None for the remote's default.
        profilers: Whether the machine needs NVIDIA's profilers, nsys and ncu.
        timeout_s: Seconds without a response after which a batch is abandoned, waiting for a machine included.
        max_cost: Limit on a session's estimated cost in US dollars; None for no limit.
        containers: Number of machines or containers used at once.
        deployed_app: Name of a deployed app; None to start an app for the session.
        single_use: Whether every batch runs in a container that no other batch has used.
        gpu_price: Price of one GPU in US dollars an hour; None for the remote's list price, if it has one.
        longest_s: Run-time limit of a batch or program on the remote in seconds; None for ``timeout_s``.
    """

    target: str = ""
    gpu: str = "B200"
    gpu_capability: str | None = None
    simulates: bool = False
    cpus: float | None = None
    memory_gib: int | None = None
    profilers: bool = False
    timeout_s: float = 900.0
    max_cost: float | None = None
    containers: int = 1
    deployed_app: str | None = None
    single_use: bool = False
    gpu_price: float | None = None
    longest_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOption:
    """Description of one command-line option.

    Attributes:
        field: Field of `RemoteOptions`.
        name: Name of the option: ``--NAME`` of ``nvfp4``, and ``--nvfp4-NAME`` of pytest.
        type: Type of the value; bool for a flag without a value.
        metavar: Placeholder of the value.
        help: Description, as a phrase without a period.
        accepts: Whether a value is within the bounds.
        bounds: The bounds, for the error.
    """

    field: str
    name: str
    type: type[str] | type[int] | type[float] | type[bool] = str
    metavar: str = ""
    help: str
    accepts: Callable[[Any], bool] = lambda _: True
    bounds: str = ""

    @property
    def flag(self) -> str:
        """The option of ``nvfp4``."""
        return f"--{self.name}"

    @property
    def pytest_flag(self) -> str:
        """The option of pytest."""
        return f"--nvfp4-{self.name}"

    @property
    def default(self) -> Any:
        """Value without the option."""
        return getattr(RemoteOptions(), self.field)

    @property
    def described(self) -> str:
        """Description with the default."""
        if self.default is None or self.default is False:
            return self.help
        shown = f"{self.default:g}" if isinstance(self.default, float) else self.default
        return f"{self.help} (default: {shown})"

    def error(self, flag: str, value: Any) -> str | None:
        """Return what is wrong with the value of an option of this name, or None."""
        if value is None or self.accepts(value):
            return None
        return f"{flag} {value:g} must be {self.bounds}"


OPTIONS = (
    RemoteOption(field="gpu", name="gpu", metavar="GPU", help="GPU of the remote, by its own name"),
    RemoteOption(
        field="gpu_capability",
        name="gpu-capability",
        metavar="X.Y",
        help="compute capability of a GPU whose name is not known; another one is refused",
    ),
    RemoteOption(
        field="cpus",
        name="remote-cpus",
        type=float,
        metavar="N",
        help="cores of each container (modal; default: 4, for the simulator 2)",
        accepts=lambda count: 0.125 <= count <= 64,
        bounds="0.125 to 64",
    ),
    RemoteOption(
        field="memory_gib",
        name="remote-memory",
        type=int,
        metavar="GIB",
        help="memory of each container in GiB (modal; default: 32, for the simulator 8)",
        accepts=lambda size: 1 <= size <= 336,
        bounds="1 to 336 GiB",
    ),
    RemoteOption(
        field="timeout_s",
        name="remote-timeout",
        type=float,
        metavar="SECONDS",
        help="timeout in seconds for a response of the remote, including the wait for a machine",
        accepts=lambda seconds: 0 < seconds <= 86_400,
        bounds="more than 0 and at most 86400 seconds",
    ),
    RemoteOption(
        field="max_cost",
        name="remote-max-cost",
        type=float,
        metavar="USD",
        help="end the remote session when its estimated cost reaches this many dollars",
        accepts=lambda dollars: 0 < dollars <= 1e6,
        bounds="more than zero dollars and at most a million",
    ),
    RemoteOption(
        field="gpu_price",
        name="gpu-price",
        type=float,
        metavar="USD",
        help="price of one GPU of the remote in US dollars an hour, in place of its list price",
        accepts=lambda dollars: 0 <= dollars <= 10_000,
        bounds="0 to 10000 dollars an hour",
    ),
    RemoteOption(
        field="containers",
        name="remote-containers",
        type=int,
        metavar="N",
        help="number of machines or containers of the remote to use at once",
        accepts=lambda count: 1 <= count <= 256,
        bounds="1 to 256",
    ),
    RemoteOption(
        field="deployed_app",
        name="deployed-app",
        metavar="APP",
        help="use this deployed app instead of starting one (modal)",
    ),
    RemoteOption(
        field="single_use",
        name="remote-single-use",
        type=bool,
        help="run every batch of jobs in a new container (slower; for untrusted kernels)",
    ),
)
"""Every option but the target and the run-time limit, which each program derives from other options."""


def with_own_flags(text: str) -> str:
    """Return a text of ``nvfp4`` with its own options in place of pytest's, which errors of remotes name."""
    for option in OPTIONS:
        text = re.sub(rf"{option.pytest_flag}(?![\w-])", option.flag, text)
    return text

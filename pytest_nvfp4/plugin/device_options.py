"""Options about devices, which several checks share: where kernels run, input families, timeouts, timelines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_nvfp4.plugin import remote
from pytest_nvfp4.plugin.remote import RemoteRequest
from pytest_nvfp4.plugin.state import RUN


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Options about devices.

    Attributes:
        device: Name of the device.
        require: A check without a device fails instead of being skipped.
        families: Input families to verify with; empty for the default ones.
        seed: Seed that a failure of ``verify`` shows, to repeat its inputs and order of calls; None to draw one.
        timeout_s: Timeout of one job in seconds.
        fresh: Ignore all cached traces, results and answers of remotes.
        trace: Folder for timelines of simulations; None for none.
        trace_ctas: CTAs of each launch in a timeline.
        remote: The remote that replaces the device; None for none.
        jobs: Compiles and simulations at once in the background; None for as many as fit the machine.
    """

    device: str
    require: bool
    families: tuple[str, ...]
    timeout_s: float
    fresh: bool = False
    trace: Path | None = None
    trace_ctas: int = 4
    remote: RemoteRequest | None = None
    jobs: int | None = None
    seed: int | None = None

    @property
    def simulates(self) -> bool:
        """Whether kernels are simulated: checks that count what a kernel does require it."""
        return self.device in ("auto", "sim")


def add(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("nvfp4")
    group.addoption(
        "--nvfp4-device",
        default="auto",
        metavar="NAME",
        help="device of verify and benchmark checks: auto (a GPU of this machine that supports the kernel, else the "
        "simulator), local, sim, none (no such checks), or a device that another package adds",
    )
    group.addoption(
        "--nvfp4-require-device",
        action="store_true",
        help="fail the checks that have no device, instead of skipping them; together with --nvfp4-device=local, "
        "nothing is simulated",
    )
    group.addoption(
        "--nvfp4-family",
        action="append",
        default=[],
        metavar="NAME",
        help="input family to verify with instead of the default ones; may be repeated",
    )
    group.addoption(
        "--nvfp4-seed",
        type=int,
        metavar="N",
        help="repeat the inputs and the order of calls of a failure of verify, which shows N (default: drawn, so that "
        "no kernel knows its inputs beforehand)",
    )
    group.addoption(
        "--nvfp4-device-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="timeout in seconds of one job on a device (default: 600)",
    )
    group.addoption(
        "--nvfp4-fresh",
        action="store_true",
        help="compile, simulate and judge again; otherwise a kernel is not compiled again, and a case that passed not "
        "simulated again, while kernel, inputs, simulator and the versions of torch and the DSL are the same",
    )
    group.addoption(
        "--nvfp4-jobs",
        type=int,
        metavar="N",
        help="compile and simulate N kernels at once, before the checks that need them (default: as many as fit the "
        "cores and memory; 1: one after the other, when a check needs it; no effect in test processes of xdist)",
    )
    group.addoption(
        "--nvfp4-trace",
        metavar="FOLDER",
        help="write a timeline of each simulated check (Chrome's trace format, for ui.perfetto.dev) in steps, not time",
    )
    group.addoption(
        "--nvfp4-trace-ctas",
        type=int,
        default=4,
        metavar="N",
        help="CTAs of each launch that a timeline shows (default: 4)",
    )
    remote.add(group)


def read(config: pytest.Config) -> DeviceOptions:
    """Read the options. Raises pytest.UsageError."""
    timeout = config.getoption("--nvfp4-device-timeout")
    jobs = config.getoption("--nvfp4-jobs")
    if jobs is not None and not 1 <= jobs <= 64:
        raise pytest.UsageError(f"--nvfp4-jobs {jobs} must be 1 to 64")
    seed = config.getoption("--nvfp4-seed")
    if seed is not None and not 0 <= seed < 1 << 32:
        raise pytest.UsageError(f"--nvfp4-seed {seed} must be 0 to {(1 << 32) - 1}")
    if not timeout > 0:
        raise pytest.UsageError(f"--nvfp4-device-timeout {timeout:g} must be more than zero seconds")
    trace = config.getoption("--nvfp4-trace")
    if not 1 <= config.getoption("--nvfp4-trace-ctas") <= 9999:
        raise pytest.UsageError("--nvfp4-trace-ctas must be 1 to 9999")
    if trace is not None and (config.invocation_params.dir / trace).is_file():
        raise pytest.UsageError(f"--nvfp4-trace {trace} is a file: name a folder")
    name = config.getoption("--nvfp4-device")
    if name not in ("auto", "local", "sim", "none"):
        from pytest_nvfp4.device.select import known_names

        if name not in known_names():
            raise pytest.UsageError(f"--nvfp4-device {name!r}: no such device; known are {', '.join(known_names())}")
    families = tuple(config.getoption("--nvfp4-family"))
    if families:
        from pytest_nvfp4.numerics.families import FAMILIES

        for family in families:
            if family not in FAMILIES and not config.stash[RUN].settings.has_own_contracts:
                raise pytest.UsageError(f"--nvfp4-family {family!r}: known are {', '.join(FAMILIES)}")
    request = remote.read(config)
    return DeviceOptions(
        device=name if request is None or request.options.simulates else request.name,
        remote=request,
        require=bool(config.getoption("--nvfp4-require-device")),
        families=families,
        timeout_s=timeout,
        fresh=bool(config.getoption("--nvfp4-fresh")),
        trace=None if trace is None else (config.invocation_params.dir / trace).resolve(),
        trace_ctas=config.getoption("--nvfp4-trace-ctas"),
        jobs=jobs,
        seed=seed,
    )

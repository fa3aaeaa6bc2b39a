"""The options about devices: where checks run kernels, what is simulated, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin import remote
from pytest_nvfp4.schedules import WORDS, is_schedule

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.remote import RemoteRequest


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What the user asked for about devices.

    Attributes:
        device: Name of the device.
        require: A check that finds no device fails instead of being skipped.
        families: Input families to verify with; empty for the default ones.
        rounds: Timed calls of a benchmark.
        threshold: Least slowdown that fails a benchmark with a baseline, as a share.
        timeout_s: Seconds that one job may take.
        fresh: Simulate again what is known to pass.
        trace: Folder for timelines of what is simulated; None for none.
        trace_ctas: CTAs of each launch that a timeline shows.
        remote: The remote that takes the device's place; None for none.
        races: On which problems to look for races: ``all``, ``small`` (one a kernel) or ``off``.
        schedules: Random schedules that the races check tries besides the eager one.
        schedule: The one schedule that it tries; None for the eager one and ``schedules`` more.
        race_warnings: Tell also of what official kernels leave out.
        jobs: Compiles and simulations at once, ahead of the checks; None for what the machine has room for.
    """

    device: str
    require: bool
    families: tuple[str, ...]
    rounds: int
    threshold: float
    timeout_s: float
    fresh: bool = False
    trace: Path | None = None
    trace_ctas: int = 4
    remote: RemoteRequest | None = None
    races: str = "small"
    schedules: int = 0
    schedule: str | None = None
    race_warnings: bool = False
    jobs: int | None = None

    @property
    def simulates(self) -> bool:
        """Whether kernels are simulated at all: checks that count what a kernel does need it."""
        return self.device in ("auto", "sim")


def add(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("nvfp4")
    group.addoption(
        "--nvfp4-device",
        default="auto",
        metavar="NAME",
        help="where verify and benchmark checks run: auto (a GPU of this machine that fits the kernel, else the "
        "simulator), local, sim, none (there are no such checks), or a device that another package adds",
    )
    group.addoption(
        "--nvfp4-require-device",
        action="store_true",
        help="fail the checks that find no device they could run on, instead of skipping them; --nvfp4-device=local "
        "with it makes sure that nothing is simulated",
    )
    group.addoption(
        "--nvfp4-family",
        action="append",
        default=[],
        metavar="NAME",
        help="input family to verify with instead of the default ones; may be repeated",
    )
    group.addoption(
        "--nvfp4-rounds", type=int, default=120, metavar="N", help="timed calls of a benchmark check (default: 120)"
    )
    group.addoption(
        "--nvfp4-device-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds one job may take on a device (default: 600)",
    )
    group.addoption(
        "--nvfp4-fresh",
        action="store_true",
        help="simulate everything again; otherwise a case that passed is not run again while the kernel, the inputs, "
        "the simulator and the versions of torch and the DSL are the same",
    )
    group.addoption(
        "--nvfp4-jobs",
        type=int,
        metavar="N",
        help="compile and simulate so many kernels at once, ahead of the checks that ask for it (default: what there "
        "are cores and memory for; 1: one after the other, when a check asks; not in the test processes of xdist)",
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
    group.addoption(
        "--nvfp4-races",
        choices=("all", "small", "off"),
        default="small",
        help="look for races in the simulator, by happens-before: on one small problem of each kernel (default), on "
        "all problems that are verified, or not at all",
    )
    group.addoption(
        "--nvfp4-schedules",
        type=int,
        default=0,
        metavar="N",
        help="run the races check under N random schedules more, each drawn from a seed (default: 0)",
    )
    group.addoption(
        "--nvfp4-schedule",
        metavar="SEED",
        help="run the races check under this schedule alone: eager, lazy, late-0-3 (warps 0 and 3 run when no other "
        "can), or the seed that a finding named",
    )
    group.addoption(
        "--nvfp4-race-warnings",
        action="store_true",
        help="warn also of what the PTX ISA wants and official kernels leave out: tcgen05.wait::ld, tcgen05.fence, a "
        "commit between MMAs and the tcgen05.cp behind them, fence.mbarrier_init",
    )
    group.addoption(
        "--nvfp4-threshold",
        type=float,
        metavar="PERCENT",
        help="least slowdown that fails a benchmark check with a baseline (default: ini nvfp4_threshold, else 0.5); a "
        "test may have its own with the marker nvfp4_threshold",
    )
    remote.add(group)
    parser.addini("nvfp4_threshold", "least slowdown that fails a benchmark check, in percent", default="0.5")


def read(config: pytest.Config) -> DeviceOptions:
    """The options of a run. Raises pytest.UsageError."""
    rounds, timeout = config.getoption("--nvfp4-rounds"), config.getoption("--nvfp4-device-timeout")
    if rounds < 3:
        raise pytest.UsageError(f"--nvfp4-rounds {rounds} is too few: at least 3 are needed")
    jobs = config.getoption("--nvfp4-jobs")
    if jobs is not None and not 1 <= jobs <= 64:
        raise pytest.UsageError(f"--nvfp4-jobs {jobs} must be 1 to 64")
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
    if not 0 <= config.getoption("--nvfp4-schedules") <= 10_000:
        raise pytest.UsageError("--nvfp4-schedules must be 0 to 10000")
    schedule = config.getoption("--nvfp4-schedule")
    if schedule is not None and not is_schedule(schedule):
        raise pytest.UsageError(f"--nvfp4-schedule {schedule!r} must be {WORDS}")
    families = tuple(config.getoption("--nvfp4-family"))
    if families:
        from pytest_nvfp4.numerics.families import FAMILIES

        for family in families:
            if family not in FAMILIES:
                raise pytest.UsageError(f"--nvfp4-family {family!r}: known are {', '.join(FAMILIES)}")
    wanted = remote.read(config)
    return DeviceOptions(
        device=name if wanted is None else wanted.name,
        remote=wanted,
        require=bool(config.getoption("--nvfp4-require-device")),
        families=families,
        rounds=rounds,
        threshold=_threshold(config),
        timeout_s=timeout,
        fresh=bool(config.getoption("--nvfp4-fresh")),
        trace=None if trace is None else (config.invocation_params.dir / trace).resolve(),
        trace_ctas=config.getoption("--nvfp4-trace-ctas"),
        races=config.getoption("--nvfp4-races"),
        schedules=config.getoption("--nvfp4-schedules"),
        schedule=schedule,
        race_warnings=bool(config.getoption("--nvfp4-race-warnings")),
        jobs=jobs,
    )


def _threshold(config: pytest.Config) -> float:
    given = config.getoption("--nvfp4-threshold")
    where = "ini nvfp4_threshold =" if given is None else "--nvfp4-threshold"
    value = config.getini("nvfp4_threshold") if given is None else given
    try:
        percent = float(value)
    except ValueError as error:
        raise pytest.UsageError(f"{where} {value!r} is not a number of percent") from error
    if not 0 < percent < 100:
        raise pytest.UsageError(f"{where} {percent:g} must be more than 0 and less than 100 percent")
    return percent / 100

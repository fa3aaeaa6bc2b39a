"""What a profile shows, for commands: the analysis of its launches, and a simulation of the same call beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.cli.simulation import Runnable
    from pytest_nvfp4.device.job import JobCase
    from pytest_nvfp4.profile.explain import Simulated
    from pytest_nvfp4.profile.result import Profile
    from pytest_nvfp4.report.document import Block


def explained(
    profile: Profile, subject: Runnable | None = None, case: JobCase | None = None, *, timeout_s: float = 600.0
) -> tuple[list[Block], dict[str, Any]]:
    """Return what a profile shows, for readers and as data.

    Args:
        profile: The profile, of anybody.
        subject: The profiled kernel, to simulate the same call; None for the analysis alone.
        case: The profiled call; None for the kernel's first one.
        timeout_s: Timeout of the simulation.

    Raises:
        InputError: The kernel cannot be simulated.
    """
    from pytest_nvfp4.profile.explain import explain
    from pytest_nvfp4.report.profiles import explanation_data, explanation_sections

    simulated = None if subject is None else _simulated(profile, subject, case or subject.cases()[0], timeout_s)
    explanation = explain(profile, simulated)
    return list(explanation_sections(explanation)), dict(explanation_data(explanation))


def _simulated(profile: Profile, subject: Runnable, case: JobCase, timeout_s: float) -> Simulated:
    from pytest_nvfp4.device.simulate import simulate
    from pytest_nvfp4.driver.device_model import for_arch
    from pytest_nvfp4.profile.explain import simulated_call

    arch = subject.spec.arch
    device = subject.simulator(timeout_s=timeout_s)
    if (why := device.unsupported(arch)) is not None:
        raise InputError(f"{subject.label}: {why}")
    measured_on = profile.device
    same = measured_on is not None and measured_on.capability == for_arch(arch).capability
    # A persistent kernel launches as many CTAs as the device has SMs.
    sms = measured_on.sms if same and measured_on is not None else None
    with temporary_folder("explain") as folder, output.working(f"simulating {subject.label} to compare with"):
        (done,) = simulate(
            device,
            subject.spec,
            [case],
            folder=Path(folder),
            base=subject.base,
            deadline_s=timeout_s,
            recording=True,
            sms=sms,
        )
    found = simulated_call(done, arch)
    if found is None or done.errors:
        reasons = "; ".join(subject.finding_text(finding) for finding in done.errors) or done.status
        raise InputError(f"{subject.label}: the simulation does not reach its end: {reasons}")
    return found

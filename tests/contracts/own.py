"""Jobs of kernels under a contract of the user's own."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.contracts.own.run import identity, own_problems
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec


def own_cases(place: str) -> list[JobCase]:
    """Return a case for each problem and input family of the contract ``FILE::NAME``."""
    listed = own_problems(identity(place))
    return [
        JobCase(problem=ProblemSpec.of(problem), family=family)
        for problem in listed.problems.values()
        for family in listed.families
    ]


def own_kernel(kernel: Path, call: str, *, arch: str, side_stream: bool = True) -> tuple[KernelSpec, Path]:
    """Return a kernel whose function ``call`` a contract calls, and the folder of its files."""
    return KernelSpec.from_files(kernel, arch=arch, entry=call, entry_file=kernel, side_stream=side_stream)

"""``--nvfp4-profile`` adds a profile to a benchmark's item and to the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.plugin.checks.benchmark_profiles import PROPERTY, BenchmarkProfiles
from pytest_nvfp4.plugin.failure import CheckFailure, TimingWarning
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.profile.result import Profile
from tests.device.local_jobs import KERNELS
from tests.device.profiling.fake_tools import Step, install
from tests.profile.reports import raw_page

PAGE = raw_page([{"gpu__time_duration.sum": "2,000"}], {"gpu__time_duration.sum": "ns"})


class Lines(list[str]):
    """A terminal."""

    def write_sep(self, _: str, title: str) -> None:
        self.append(title)

    def write_line(self, line: str) -> None:
        self.append(line)


def profiled(request: pytest.FixtureRequest, tmp_path: Path, *, full: Step, wrong: bool = False) -> Lines:
    install(tmp_path / "bin", "ncu", full=full, few=full, version="9999.1", pages={"raw": PAGE, "details": PAGE})
    kernel = KERNELS / "honest.py"
    if wrong:
        kernel = tmp_path / "kernel.py"
        kernel.write_text("def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n")
    spec, base = KernelSpec.from_files(kernel, arch="sm_100a")
    profiles = BenchmarkProfiles("ncu")
    item: Any = request.node
    where = LocalDevice(probe_folder=tmp_path, backend="host")
    profiles.add(item, where, spec, parse_shape("4x128x256"), base=base, folder=tmp_path / "jobs", timeout_s=300)
    lines = Lines()
    profiles.summarise(lines)
    return lines


@pytest.fixture(autouse=True)
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


@pytest.mark.slow
def test_a_profile_is_a_property_of_the_item_and_a_line_of_the_summary(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    title, line = profiled(request, tmp_path, full=Step())
    assert title == "nvfp4: profiles"
    assert line.endswith("ncu: gemm: 2 us")
    ((name, text),) = request.node.user_properties
    assert name == PROPERTY
    assert Profile.model_validate_json(text).launches[0].value("duration") == 2


@pytest.mark.slow
def test_no_tool_is_a_warning_and_a_wrong_kernel_a_failure(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with pytest.warns(TimingWarning, match="not profiled: this torch was built without CUPTI"):
        profiled(request, tmp_path, full=Step(runs=False, report=None, log="ERR_NVGPUCTRPERM"))
    with pytest.raises(CheckFailure, match="wrong below ncu"):
        profiled(request, tmp_path, full=Step(), wrong=True)


def test_nothing_is_profiled_without_the_option(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    lines = Lines()
    BenchmarkProfiles(None).summarise(lines)
    assert lines == []
    nothing: Any = None
    problem = parse_shape("4x128x256")
    BenchmarkProfiles(None).add(request.node, nothing, nothing, problem, base=tmp_path, folder=tmp_path, timeout_s=1)

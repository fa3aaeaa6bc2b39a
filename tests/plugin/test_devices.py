"""Checks that run kernels, on a device that another package adds: torch's operations on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

KERNELS = Path(__file__).parents[1] / "device" / "kernels"

CPU = """
from pytest_nvfp4.device import select
from pytest_nvfp4.device.local import LocalDevice

select.known_names = lambda: ["auto", "local", "sim", "none", "cpu"]
select._third_party = lambda name: (lambda *, probe_folder: LocalDevice(probe_folder=probe_folder, backend="host"))
"""
"""A plugin in place of an entry point."""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(cpu_device=CPU)
    pytester.syspathinsert()
    pytester.path.joinpath("kernel.py").write_text((KERNELS / "honest.py").read_text())
    pytester.path.joinpath("pyproject.toml").write_text("[tool.pytest_nvfp4]\ntorch-operators = true\n")
    return pytester


def run(project: pytest.Pytester, *args: str, device: str = "cpu") -> pytest.RunResult:
    return project.runpytest_subprocess(
        "-p", "cpu_device", "-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:cacheprovider",
        f"--nvfp4-device={device}", *args,
    )  # fmt: skip


SMALL = ("--nvfp4-problem=7x128x256", "--nvfp4-family=pow2_exact")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.slow)])
def test_an_honest_kernel_is_verified(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    result = run(project, "kernel.py", "-k", "verify", "-v", *SMALL, "--nvfp4-problem=3x128x256,0x128x512", *workers)
    assert result.parseoutcomes()["passed"] == 2
    result.stdout.fnmatch_lines(["*kernel.py::verify?7x128x256?*"])


@pytest.mark.slow
def test_a_wrong_kernel_fails_with_what_is_wrong(project: pytest.Pytester) -> None:
    path = project.path / "kernel.py"
    path.write_text(path.read_text().replace("[:rows, : k // 16]", "[:rows, : k // 16].roll(1, dims=1)"))
    result = run(project, "kernel.py", "-k", "verify", *SMALL)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["*outputs wrong*", "*failed on 7x128x256 with inputs 'pow2_exact'", "*order of calls: --nvfp4-seed*"]
    )
    assert "Traceback" not in result.stdout.str()
    (short,) = [line for line in result.outlines if line.startswith("FAILED ")]
    assert "group 0 (7x128): " in short, "the short summary says what is wrong"


@pytest.mark.slow
def test_a_kernel_that_raises_names_its_own_line(project: pytest.Pytester) -> None:
    (project.path / "kernel.py").write_text(
        "import torch\n\n\ndef custom_kernel(data):\n    raise ValueError('here')\n"
    )
    result = run(project, "kernel.py", "-k", "verify", *SMALL)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*kernel.py:5:*ValueError: here*"])


@pytest.mark.slow
def test_the_default_families_and_their_own_shapes(project: pytest.Pytester) -> None:
    result = run(project, "kernel.py", "-k", "gpumode-0 or own-shapes", "--co", "-q")
    result.stdout.fnmatch_lines(["kernel.py::verify?gpumode-0?", "kernel.py::verify?own-shapes?"])
    chosen = ("kernel.py", "-k", "own-shapes", "--co", "-q", "--nvfp4-family=pow2_exact")
    assert "own-shapes" not in run(project, *chosen).stdout.str(), "this family brings no sizes: nothing would be run"
    assert "own-shapes" in run(project, *chosen, "--nvfp4-family=edge").stdout.str()


@pytest.mark.slow
def test_without_a_gpu_the_simulator_verifies_and_is_named(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = project.path / "kernel.py"
    path.write_text(path.read_text().replace("[:rows, : k // 16]", "[:rows, : k // 16].roll(1, dims=1)"))
    result = run(project, "kernel.py", "-k", "verify", *SMALL, device="auto")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*on simulated NVIDIA B200, sm_100*"])


@pytest.mark.slow
def test_what_passed_is_not_simulated_again(project: pytest.Pytester, tmp_path: Path) -> None:
    args = ("kernel.py", "-k", "verify", "--nvfp4-cache-dir", str(tmp_path), *SMALL)
    assert "known to pass" not in run(project, *args, device="sim").stdout.str()
    again = run(project, *args, device="sim")
    again.stdout.fnmatch_lines(["nvfp4: 1 case is known to pass in the simulator*--nvfp4-fresh*"])
    assert "known to pass" not in run(project, *args, "--nvfp4-fresh", device="sim").stdout.str()
    path = project.path / "kernel.py"
    path.write_text(path.read_text().replace("[:rows, : k // 16]", "[:rows, : k // 16].roll(1, dims=1)"))
    assert run(project, *args, device="sim").parseoutcomes()["failed"] == 1


@pytest.mark.slow
def test_checks_without_a_device_are_skipped_and_named(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = run(project, "kernel.py", "-k", "verify", "-rs", device="local")
    assert result.parseoutcomes()["skipped"] == 11
    result.stdout.fnmatch_lines(
        ["nvfp4: 11 checks were not run: this machine has no NVIDIA GPU*--nvfp4-require-device*"]
    )


@pytest.mark.slow
def test_a_required_device_that_is_missing_fails(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = run(project, "kernel.py", "-k", "verify", "--nvfp4-require-device", *SMALL, device="local")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*not run: this machine has no NVIDIA GPU*--nvfp4-require-device*"])


@pytest.mark.slow
def test_another_architecture_is_unsupported(project: pytest.Pytester) -> None:
    result = run(project, "kernel.py", "-k", "verify", "--nvfp4-arch=sm_90a", "-rs", *SMALL)
    assert result.parseoutcomes()["skipped"] == 1
    result.stdout.fnmatch_lines(["*the kernel is for sm_90a, and NVIDIA B200 is sm_100*"])


@pytest.mark.slow
def test_no_device_means_no_such_checks(project: pytest.Pytester) -> None:
    result = run(project, "kernel.py", "--co", "-q", device="none")
    assert "verify" not in result.stdout.str()


@pytest.mark.slow
def test_tests_of_ones_own_run_kernels(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_own="""
        import pytest

        def test_it(nvfp4_kernel, nvfp4_device):
            done = nvfp4_kernel("kernel.py").verify(problem="5x128x256", families=["pow2_exact"])
            assert [verdict.status for verdict in done.verdicts] == ["passed"]
            assert done.device.name == nvfp4_device.describe().name

        def test_wrong_arguments(nvfp4_kernel):
            with pytest.raises(AssertionError, match="no kernel file"):
                nvfp4_kernel("missing.py")
            with pytest.raises(AssertionError, match="no family"):
                nvfp4_kernel("kernel.py").verify(families=["nonsense"])
            with pytest.raises(AssertionError, match="no problem"):
                nvfp4_kernel("kernel.py").verify(problem="nonsense")
        """
    )
    run(project, "test_own.py").assert_outcomes(passed=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--nvfp4-device=abacus", "known are"),
        ("--nvfp4-family=nonsense", "pow2_exact"),
        ("--nvfp4-rounds=1", "too few"),
        ("--nvfp4-device-timeout=0", "more than zero"),
    ],
)
def test_options_that_cannot_be_used(project: pytest.Pytester, option: str, words: str) -> None:
    result = run(project, "kernel.py", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str()


@pytest.mark.slow
def test_the_header_names_the_device(project: pytest.Pytester) -> None:
    run(project, "kernel.py", "--co").stdout.fnmatch_lines(["nvfp4: *; device cpu: *"])

"""Profilers are found on PATH and in the usual folders, the newest first; reasons are read from their logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.job import Profiling, SourceFile
from pytest_nvfp4.device.profiling import commands
from pytest_nvfp4.device.profiling.kernel_names import kernel_names
from pytest_nvfp4.device.profiling.reasons import unavailable_because
from pytest_nvfp4.device.profiling.tools import Program, found_tools, program
from tests.device.profiling.fake_tools import Step, install


def test_the_newest_of_all_folders_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = tmp_path / "bin"
    install(on_path, "ncu", full=Step(), version="2025.2.1.0")
    install(tmp_path / "opt/nvidia/nsight-compute/2025.10.0", "ncu", full=Step(), version="2025.10.0.0")
    install(tmp_path / "usr/local/cuda-13.0/bin", "ncu", full=Step(), version="2025.9.0.0")
    monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
    found = program("ncu", root=tmp_path)
    assert isinstance(found, Program)
    assert (found.version, found.path.parent.name) == ("2025.10.0.0", "2025.10.0")


def test_a_missing_tool_and_one_that_does_not_run_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    missing = program("nsys", root=tmp_path)
    assert isinstance(missing, str)
    assert "apt-get install" in missing
    broken = tmp_path / "usr/local/cuda/bin/nsys"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/false\n")
    broken.chmod(0o755)
    assert "does not run here" in str(program("nsys", root=tmp_path))
    tools = {tool.tool: tool for tool in found_tools(root=tmp_path)}
    assert set(tools) == {"ncu", "nsys", "sanitizer"}
    assert "does not run" in tools["nsys"].because


def test_the_device_functions_of_a_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(
        "@cute.kernel\ndef one(): pass\n@cutlass.cute.kernel()\ndef two(): pass\n@cute.jit\ndef host(): pass\n"
        "@triton.jit\ndef three(): pass\n"
        "C = '__global__ void __launch_bounds__(128) four(int* x) {}'\nPTX = b'.visible .entry five('\n"
    )
    assert set(kernel_names([SourceFile.read(file, base=tmp_path)])) == {"one", "two", "three", "four", "five"}


def test_ncu_profiles_the_kernels_that_are_named_only(tmp_path: Path) -> None:
    program = Program("ncu", tmp_path / "ncu", "2025.1")
    command = commands.ncu(program, Profiling(mode="ncu"), tmp_path, kernels=("one", "two")).arguments
    assert command[command.index("--kernel-name") + 1] == "regex:one|two"
    assert "--kernel-name" not in commands.ncu(program, Profiling(mode="ncu"), tmp_path).arguments


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have", "administrators only"),
        ("==ERROR== An error was reported by the driver: LibraryNotLoaded", "LibraryNotLoaded"),
        ("========= Error: Device not supported. Please refer to the release notes", "does not support"),
        ("Failed to convert: Unrecognized GPU UUID", "no CUDA events"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "DCGM"),
        ("==WARNING== No kernels were profiled.", "no launch"),
    ],
)
def test_known_reasons(log: str, words: str) -> None:
    assert words in str(unavailable_because(log))


def test_an_ordinary_log_is_no_reason() -> None:
    assert unavailable_because("==PROF== Connected to process 7\n==PROF== Disconnected from process 7\n") is None

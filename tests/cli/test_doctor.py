"""``nvfp4 doctor``: what is found, what is missing, and that the doctor works where much is missing."""

import json
import os
import subprocess
import sys
import tomllib

import pytest

from pytest_nvfp4.cli.doctor import gpu, packages, probe, tools
from pytest_nvfp4.cli.doctor.gpu import Device, parse_smi, runs_on
from pytest_nvfp4.cli.doctor.model import State
from tests.cli.helpers import ROOT

B200 = Device("NVIDIA B200", 10, 0, "580.65.06")
B300 = Device("NVIDIA B300", 10, 3, "580.65.06")
H200 = Device("NVIDIA H200", 9, 0, "580.65.06")


def _states(items):
    return {item.name: item.state for item in items}


def test_every_requirement_of_the_package_is_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {text.split(";")[0].split(">")[0].strip() for text in project["dependencies"]}
    assert {item.name.lower() for item in packages.required()} == named


def test_versions_are_those_installed_and_their_limits_hold(monkeypatch) -> None:
    real = packages.version_of
    assert all(item.state is State.OK for item in packages.required())
    monkeypatch.setattr(packages, "version_of", lambda name: "0.1" if name == "pytest" else real(name))
    (pytest_item,) = [item for item in packages.required() if item.state is not State.OK]
    assert pytest_item.name == "pytest"
    assert pytest_item.state is State.FAILED
    assert "0.1, but" in pytest_item.found
    assert pytest_item.fix.startswith("pip install 'pytest")
    monkeypatch.setattr(packages, "version_of", lambda name: None if name == "rich" else real(name))
    assert _states(packages.required())["rich"] is State.FAILED


def test_libraries_of_another_version_than_the_dsl_fail(monkeypatch) -> None:
    real = packages.version_of
    assert {item.state for item in packages.dsl_libraries()} == {State.OK}
    monkeypatch.setattr(packages, "version_of", lambda name: "4.4.0" if name.endswith("libs-base") else real(name))
    item = next(item for item in packages.dsl_libraries() if item.name.endswith("libs-base"))
    assert item.state is State.FAILED
    assert item.fix.startswith("pip install --force-reinstall nvidia-cutlass-dsl==")


def test_torch_is_not_imported_to_know_its_build() -> None:
    script = (
        "import sys; from pytest_nvfp4.cli.doctor.packages import torch_build; "
        "print(torch_build(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    build, imported = done.stdout.split()
    assert imported == "False"
    assert build == "cpu" or build[0].isdigit()


@pytest.mark.parametrize(
    ("arch", "device", "runs"),
    [
        ("sm_100a", B200, True),
        ("sm_100a", B300, False),
        ("sm_100f", B300, True),
        ("sm_103a", B200, False),
        ("sm_100", B300, True),
        ("sm_100a", H200, False),
        ("sm_90a", H200, True),
        ("sm_90", B200, False),
        ("nonsense", B200, False),
    ],
)
def test_which_code_runs_where(arch, device, runs) -> None:
    assert runs_on(arch, device) is runs


def test_nvidia_smi_is_read() -> None:
    assert parse_smi("NVIDIA B200, 10.0, 580.65.06\nNVIDIA H200, NVL, 9.0, 570.1\n") == [
        B200,
        Device("NVIDIA H200, NVL", 9, 0, "570.1"),
    ]
    assert parse_smi("NVIDIA-SMI has failed\n") == []


def _tool(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_gpu_is_judged_by_the_architecture(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _tool(tmp_path, "nvidia-smi", "echo 'NVIDIA B200, 10.0, 580.65.06'")
    found = [item for item in gpu.items("sm_100a", ask_torch=False) if item.name == "device"]
    assert [(item.state, item.found) for item in found] == [
        (State.OK, "NVIDIA B200, sm_100, driver 580.65.06: runs sm_100a")
    ]
    _tool(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 9.0, 580.65.06'")
    found = [item for item in gpu.items("sm_100a", ask_torch=False) if item.name == "device"]
    assert found[0].state is State.WARNING
    assert "does not run sm_100a" in found[0].found


def test_torch_is_held_against_the_device(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "torch_build", lambda: "13.0")
    good = {"archs": ["sm_90", "sm_100"], "available": True}
    old = {"archs": ["sm_80", "sm_90"], "available": True}
    ptx = {"archs": ["sm_80", "compute_90"], "available": True}
    assert [item.state for item in gpu._torch_on(B200, "sm_100", good)] == [State.OK]
    assert [item.state for item in gpu._torch_on(B200, "sm_100", old)] == [State.WARNING]
    assert [item.state for item in gpu._torch_on(B200, "sm_100", ptx)] == [State.OK]
    monkeypatch.setattr(gpu, "torch_build", lambda: "cpu")
    (item,) = gpu._torch_on(B200, "sm_100", None)
    assert item.state is State.WARNING
    assert "--index-url" in item.fix
    del tmp_path


def test_a_broken_driver_is_a_reason_not_a_crash(tmp_path, monkeypatch) -> None:
    _tool(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed because of reasons' >&2; exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = list(gpu.items("sm_100a", ask_torch=False))
    assert found[0].name == "device"
    assert found[0].state is State.ABSENT
    assert "because of reasons" in found[0].found


def test_tools_are_found_by_path(tmp_path, monkeypatch) -> None:
    _tool(tmp_path, "ncu", "echo 'NVIDIA (R) Nsight Compute'; echo 'Version 2025.3.1.0 (build 1)'")
    _tool(tmp_path, "nsys", "exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {item.name: item for item in tools.programs()}
    assert found["ncu"].found.startswith("2025.3.1.0 (")
    assert found["nsys"].found.startswith("prints nothing (status 3)")
    assert found["git"].state is State.ABSENT
    assert found["compute-sanitizer"].fix


def test_a_missing_disassembler_is_a_failure(monkeypatch) -> None:
    assert set(_states(tools.binary_tools()).values()) == {State.OK}
    monkeypatch.setattr(tools.binaries, "find", lambda _name: None)
    found = list(tools.binary_tools())
    assert {item.state for item in found} == {State.FAILED}
    assert found[0].fix == "pip install nvidia-cuda-nvdisasm"


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NVFP4_CACHE_DIR", str(blocked / "below"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (item,) = tools.cache()
    assert item.state is State.WARNING
    assert "cannot be written" in item.found
    assert "NVFP4_CACHE_DIR" in item.fix


@pytest.mark.slow
def test_a_small_kernel_compiles_here() -> None:
    item = probe.compile_here("sm_100a")
    assert item.state is State.OK, item.found
    assert item.found.startswith("ptx, cubin, sass in ")


def test_an_architecture_that_there_is_not_is_a_failure() -> None:
    item = probe.compile_here("sm_10x")
    assert item.state is State.FAILED


def test_the_command(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = cli("doctor", "--no-probe")
    assert shown.code == 0, shown.out
    assert "everything required is here" in shown.out
    data = json.loads(cli("doctor", "--no-probe", "--json").out)
    assert data["ok"] is True
    assert data["arch"] == "sm_100a"
    sections = [item["section"] for item in data["items"]]
    assert {"python", "packages", "tools", "cache", "sandbox", "gpu", "optional"} == set(sections)
    assert all(item["fix"] for item in data["items"] if item["state"] == "failed")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest_nvfp4]\narch = "sm_103a"\n')
    assert json.loads(cli("doctor", "--no-probe", "--json").out)["arch"] == "sm_103a"
    monkeypatch.setattr(packages, "version_of", lambda _name: None)
    failed = cli("doctor", "--no-probe")
    assert failed.code == 1
    assert "get it with: pip install" in failed.out


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["filelock", "pydantic", "platformdirs", "packaging"])
def test_the_doctor_works_without_a_package(missing, tmp_path) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from pytest_nvfp4.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NVFP4_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, done.stderr
    failed = [item for item in json.loads(done.stdout)["items"] if item["state"] == "failed"]
    assert any(f"pip install {missing}" in item["fix"] for item in failed)

"""GPUs of this machine, without importing torch: from nvidia-smi, else from the driver's library."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.cli.doctor.model import Item, ProgramResult, State, run_program
from pytest_nvfp4.cli.doctor.packages import torch_build, version_of

_TIMEOUT_S = 30.0
_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")
# Runs in a child process, so that a driver that hangs or crashes does not end the doctor. 75 and 76 are
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (CUDA driver API, CUdevice_attribute).
_ASK_DRIVER = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
status = cuda.cuInit(0)
if status:
    raise SystemExit(f"cuInit ended with status {status}")
version, count = ctypes.c_int(), ctypes.c_int()
cuda.cuDriverGetVersion(ctypes.byref(version))
cuda.cuDeviceGetCount(ctypes.byref(count))
found = []
for index in range(count.value):
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, 256, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    found.append([name.value.decode(errors="replace"), major.value, minor.value])
print(json.dumps({"cuda": version.value, "devices": found}))
"""
_ASK_TORCH = """
import json, torch
there = torch.cuda.is_available()
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
print(json.dumps({"archs": torch.cuda.get_arch_list() if there else flags.split(), "available": there}))
"""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: name, compute capability, and version of the driver or of its CUDA."""

    name: str
    major: int
    minor: int
    driver: str


def _python(source: str) -> ProgramResult:
    return run_program([sys.executable, "-I", "-c", source], timeout_s=_TIMEOUT_S)


def _last(text: str) -> str:
    """Return the last line of a program's output, which names the error in Python's tracebacks too."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def parse_smi(text: str) -> list[Device]:
    """Parse ``nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader``."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) == 3 and (match := re.fullmatch(r"(\d+)\.(\d+)", fields[1])):
            found.append(Device(fields[0], int(match[1]), int(match[2]), fields[2]))
    return found


def devices() -> tuple[list[Device], str]:
    """Return the GPUs, or no GPU and the reason."""
    reason = "nvidia-smi is not installed"
    if smi := shutil.which("nvidia-smi"):
        query = [smi, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
        done = run_program(query, timeout_s=_TIMEOUT_S)
        if found := parse_smi(done.stdout):
            return found, ""
        reason = f"nvidia-smi (status {done.status}): {_last(done.stderr or done.stdout)}"
    done = _python(_ASK_DRIVER)
    if done.status == 0:
        data = json.loads(done.stdout)
        cuda = f"CUDA {data['cuda'] // 1000}.{data['cuda'] % 1000 // 10}"
        found = [Device(name, major, minor, cuda) for name, major, minor in data["devices"]]
        return found, "" if found else f"the driver ({cuda}) has no device"
    return [], f"{reason}; the driver: {_last(done.stderr)}"


def runs_on(arch: str, device: Device) -> bool:
    """Return whether code for ``arch`` runs on a device.

    ``a`` code runs on its exact capability only. ``f`` code and plain SASS run on the same major version and the same
    or a greater minor version (CUDA C++ programming guide, "Compute capabilities").
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        return False
    major, minor, suffix = int(match[1]), int(match[2]), match[3]
    if suffix == "a":
        return (major, minor) == (device.major, device.minor)
    return major == device.major and minor <= device.minor


def items(arch: str, *, ask_torch: bool) -> Iterator[Item]:
    """Yield the GPUs, with whether kernels for ``arch`` and torch work on them."""
    found, reason = devices()
    purpose = "running kernels here; compiling, layouts and the simulator need no GPU"
    if not found:
        yield Item("gpu", "device", State.ABSENT, f"none: {reason}", needed_for=purpose)
    torch: dict[str, Any] | None = None
    if ask_torch:
        done = _python(_ASK_TORCH)
        if done.status == 0:
            torch = json.loads(done.stdout)
        else:
            yield Item("gpu", "torch", State.FAILED, f"cannot be imported: {_last(done.stderr)}", "pip install torch")
    for device in found:
        own = f"sm_{device.major}{device.minor}"
        text = f"{device.name}, {own}, driver {device.driver}"
        runs = runs_on(arch, device)
        text, purpose = (
            (f"{text}: runs {arch}", "") if runs else (f"{text}: does not run {arch}", f"running {arch} here")
        )
        yield Item.judged("gpu", "device", runs, text, needed_for=purpose, otherwise=State.WARNING)
        yield from _torch_on(device, own, torch)
    if found and torch is not None and not torch["available"]:
        yield Item("gpu", "torch", State.WARNING, "torch.cuda.is_available() is False", "nvidia-smi")


def _torch_on(device: Device, own: str, torch: dict[str, Any] | None) -> Iterator[Item]:
    if version_of("torch") is None:
        return
    index = "pip install --upgrade torch --index-url https://download.pytorch.org/whl/cu130"
    if torch_build() == "cpu":
        yield Item("gpu", "torch", State.WARNING, "is built without CUDA", index, f"inputs on {device.name}")
    elif torch is not None:
        # "sm_100" runs on sm_103 too; "compute_120" is PTX, which the driver compiles for newer devices.
        fits = any(runs_on(known, device) for known in torch["archs"] if known.startswith("sm_")) or any(
            (device.major, device.minor) >= (int(match[1]), int(match[2]))
            for known in torch["archs"]
            if (match := re.fullmatch(r"compute_(\d+)(\d)", known))
        )
        built = f"built for {', '.join(torch['archs']) or 'nothing'}" + ("" if fits else f", not for {own}")
        yield Item.judged("gpu", "torch", fits, built, index, otherwise=State.WARNING)

"""The GPUs of this machine, without importing torch: nvidia-smi, else the driver's library in a process of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.cli.doctor.model import Item, State
from pytest_nvfp4.cli.doctor.packages import torch_build, version_of

_DEADLINE_S = 30
_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")
# In a process of its own: a driver that hangs or crashes must not take the doctor with it.
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
    """A GPU: its name, compute capability and, where known, its driver."""

    name: str
    major: int
    minor: int
    driver: str


def _run(command: list[str]) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {_DEADLINE_S} s"
    except OSError as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, done.stderr


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing"


def parse_smi(text: str) -> list[Device]:
    """The devices in ``nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader``."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) == 3 and (match := re.fullmatch(r"(\d+)\.(\d+)", fields[1])):
            found.append(Device(fields[0], int(match[1]), int(match[2]), fields[2]))
    return found


def devices() -> tuple[list[Device], str]:
    """The GPUs, and why there are none."""
    reason = "nvidia-smi is not installed"
    if smi := shutil.which("nvidia-smi"):
        query = [smi, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
        status, text, errors = _run(query)
        if found := parse_smi(text):
            return found, ""
        reason = f"nvidia-smi (status {status}) says: {_last(errors or text)}"
    status, text, errors = _run([sys.executable, "-I", "-c", _ASK_DRIVER])
    if status == 0:
        data = json.loads(text)
        cuda = f"CUDA {data['cuda'] // 1000}.{data['cuda'] % 1000 // 10}"
        found = [Device(name, major, minor, cuda) for name, major, minor in data["devices"]]
        return found, "" if found else f"the driver ({cuda}) has no device"
    return [], f"{reason}; the driver says: {_last(errors)}"


def runs_on(arch: str, device: Device) -> bool:
    """Whether code for ``arch`` runs on a device.

    ``a`` code runs on exactly its capability, ``f`` code on its family (same major, no smaller minor); plain SASS
    likewise on the same major and no smaller minor (CUDA C++ programming guide, "Compute capabilities").
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        return False
    major, minor, suffix = int(match[1]), int(match[2]), match[3]
    if suffix == "a":
        return (major, minor) == (device.major, device.minor)
    return major == device.major and minor <= device.minor


def items(arch: str, *, ask_torch: bool) -> Iterator[Item]:
    """The GPUs, and whether kernels for ``arch`` and torch work on them."""
    found, reason = devices()
    purpose = "running kernels here; compiling, layouts and the simulator need none"
    if not found:
        yield Item("gpu", "device", State.ABSENT, f"none: {reason}", needed_for=purpose)
    torch: dict[str, Any] | None = None
    if ask_torch:
        status, text, errors = _run([sys.executable, "-I", "-c", _ASK_TORCH])
        if status == 0:
            torch = json.loads(text)
        else:
            yield Item("gpu", "torch", State.FAILED, f"cannot be imported: {_last(errors)}", "pip install torch")
    for device in found:
        own = f"sm_{device.major}{device.minor}"
        text = f"{device.name}, {own}, driver {device.driver}"
        if runs_on(arch, device):
            yield Item("gpu", "device", State.OK, f"{text}: runs {arch}")
        else:
            yield Item(
                "gpu", "device", State.WARNING, f"{text}: does not run {arch}", needed_for=f"running {arch} here"
            )
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
        # "sm_100" runs on sm_103 too; "compute_120" stands for PTX that newer devices compile for themselves.
        fits = any(runs_on(known, device) for known in torch["archs"] if known.startswith("sm_")) or any(
            (device.major, device.minor) >= (int(match[1]), int(match[2]))
            for known in torch["archs"]
            if (match := re.fullmatch(r"compute_(\d+)(\d)", known))
        )
        said = f"built for {', '.join(torch['archs']) or 'nothing'}"
        state = State.OK if fits else State.WARNING
        yield Item("gpu", "torch", state, said + ("" if fits else f", not for {own}"), "" if fits else index)

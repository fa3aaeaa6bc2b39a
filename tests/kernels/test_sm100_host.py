"""The host code of ``sm100.py``: what a later call costs, and that nothing it keeps can be stale."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kernels.compiled import FOLDER
from tests.kernels.test_sm100_map import KERNEL, load

ROOT = Path(__file__).parents[2]
SIZES = [(40, 256, 512, 1), (0, 128, 256, 1), (300, 128, 256, 1)]


class Tensor:
    """A tensor at an address of a device."""

    def __init__(self, address: int, device: int) -> None:
        self.address, self.device = address, SimpleNamespace(index=device)

    def data_ptr(self) -> int:
        return self.address


class Host:
    """The kernel's host code with a launcher that records what its table holds when it is run."""

    def __init__(self, old: str = "", new: str = "") -> None:
        self.launched: list[tuple[int, list[int], tuple[int, ...]]] = []
        kernel = load.__wrapped__(old, new)
        self.functions = kernel.custom_kernel.__globals__
        self.functions.update(
            compiled=lambda groups, _tokens: SimpleNamespace(to=functools.partial(self.launcher, groups)),
            host_pointer=lambda address: address,
            used_sms=lambda device: (148, 4)[device],
        )

    def launcher(self, groups: int, device: int) -> SimpleNamespace:
        def run(packed: tuple[int, ...]) -> None:
            address, *numbers = packed
            table = list((ctypes.c_int64 * (8 * groups)).from_address(address))
            self.launched.append((device, table, tuple(numbers)))

        return SimpleNamespace(generate_execution_args=lambda *given: (given, []), run_compiled_program=run)

    def call(self, sizes: list[tuple[int, int, int, int]], base: int = 0, device: int = 0) -> None:
        """Call the kernel with tensors at ``base`` + 100 * group + 0 to 4, which must be what is launched."""
        tensors = [[Tensor(base + 100 * group + at, device) for at in range(5)] for group in range(len(sizes))]
        abc, scales = ([tuple(one[part]) for one in tensors] for part in (slice(3), slice(3, 5)))
        before = len(self.launched)
        assert self.functions["custom_kernel"]((abc, None, scales, sizes)) == [c for _, _, c in abc]
        groups = [group for _, table, _ in self.launched[before:] for group in rows(table)]
        order = sorted((size[:3] for size in sizes if size[0]), reverse=True)
        assert [row[:3] for row in groups] == order
        for row in groups:
            group = (row[3] - base) // 100
            assert sizes[group][:3] == row[:3]
            assert row[3:] == tuple(base + 100 * group + at for at in range(5))
        assert len({row[3] for row in groups}) == len(groups)
        assert {where for where, _, _ in self.launched[before:]} <= {device}


def test_a_device_of_fewer_sms_gets_fewer_ctas() -> None:
    host = Host()
    for device in (0, 1):
        host.call([(300, 2560, 512, 1)], device=device)
    (_, _, (_, many, _)), (_, _, (_, few, _)) = host.launched
    assert many > few == 2


def rows(table: list[int]) -> list[tuple[int, ...]]:
    """The groups of a table that have tokens: m, n, k, and five addresses."""
    count = len(table) // 8
    return [row for row in zip(*(table[i * count : (i + 1) * count] for i in range(8)), strict=True) if row[0]]


def use(host: Host) -> None:
    """Call it as nothing that is kept may be wrong: new addresses, freed ones, other sizes, devices and threads."""
    host.call(SIZES)
    host.call(SIZES, base=5000)
    host.call(SIZES)
    host.call(SIZES[::-1])
    host.call([(40, 256, 768, 1), *SIZES[1:]])
    host.call([(m, n, k, 1) for m, n, k in [(8, 128, 256)] * 200])
    host.call(SIZES, device=1)
    host.call(SIZES)
    other = threading.Thread(target=host.functions["prepared"], args=(tuple(SIZES), 0, -1))
    other.start()
    other.join()


def test_nothing_that_is_kept_is_stale():
    host = Host()
    use(host)
    assert [device for device, _, _ in host.launched[-2:]] == [1, 0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "self.table[self.first :] = array",
            "self.table[self.first :] = self.table[self.first :] if any(self.table[self.first :]) else array",
        ),
        ("outputs[0].device.index, threading", "0, threading"),
        (
            "prepared(tuple(map(tuple, problem_sizes)),",
            "prepared(((300, 128, 256, 1), (0, 128, 256, 1), (40, 256, 512, 1)),",
        ),
        ("for group in self.order]", "for group in range(len(self.order))]"),
    ],
    ids=["addresses", "device", "sizes", "order"],
)
def test_state_that_is_kept_too_long_is_found(old, new):
    with pytest.raises((AssertionError, IndexError, ValueError)):
        use(Host(old, new))


def test_threads_have_tables_of_their_own():
    """The launcher reads its table without the interpreter's lock."""
    host = Host()
    tables: dict[str, int] = {}

    def keep(name: str) -> None:
        (launch,) = host.functions["prepared"](tuple(SIZES), 0, threading.get_ident())
        tables[name] = launch.table.buffer_info()[0]

    keep("main")
    other = threading.Thread(target=keep, args=("other",))
    other.start()
    other.join()
    assert len(set(tables.values())) == 2
    assert "threading.get_ident()):" in KERNEL.read_text()


def test_without_tokens_nothing_is_launched():
    host = Host()
    host.call([(0, 128, 256, 1)] * 2)
    host.call([])
    assert host.launched == []


@pytest.mark.parametrize(
    "size", [(-1, 128, 256, 1), (1, 130, 256, 1), (1, 128, 128, 1), (1, 128, 0, 1), (8, 128, 256, 2)]
)
def test_what_the_kernel_cannot_do_is_refused(size):
    with pytest.raises(ValueError, match="group 1 is"):
        Host().call([(0, 128, 256, 1), size])


WORKER = """
import json, os, sys
from pathlib import Path
from pytest_nvfp4.host import redirect
folder, kernel = Path(sys.argv[1]), Path(sys.argv[2])
os.environ.update(redirect.environment(folder, arch="sm_100a"))
import torch
from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.memory import HostMemory
from pytest_nvfp4.device.worker.simulator import simulate
from pytest_nvfp4.numerics.families import family
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.toolchain.worker import contract
from pytest_nvfp4.toolchain.worker.loading import load
with simulate(arch="sm_100a"):
    contract.provide_task()
    module = load(kernel)
    inputs = family("gpumode").generate(parse_shape("40x128x256,8x256x256"))
    slot = CallBuffers(torch, inputs)
    slot.fill(HostMemory(), inputs)
    (data,), _ = slot.arguments()
    module.custom_kernel(data)
    counts = {"python": 0, "c": 0, "driver": []}
    def profile(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and file.endswith("compiled_calls.py") and frame.f_code.co_name == "call":
            counts["driver"].append(frame.f_locals["name"])
        elif file == str(kernel) or "/cutlass/" in file:
            counts["python"] += event == "call"
            counts["c"] += event == "c_call"
    sys.setprofile(profile)
    module.custom_kernel(data)
    sys.setprofile(None)
    print("COUNTS " + json.dumps(counts))
"""


def second_call(folder: Path, kernel: Path) -> dict[str, int | list[str]]:
    """What a second call with the same sizes does on the host: calls of Python and C functions, and of the driver."""
    command = [sys.executable, "-c", WORKER, str(folder), str(kernel)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("COUNTS "))
    return json.loads(line.removeprefix("COUNTS "))


@pytest.mark.slow
def test_a_second_call_does_little_on_the_host(tmp_path):
    """A call of Python costs some 0.1 us, one of the driver some us: below 20 us together."""
    pytest.importorskip("cutlass")
    counts = second_call(tmp_path, FOLDER / "sm100.py")
    assert counts["python"] <= 12
    assert counts["c"] <= 5 * 2 + 10  # the addresses of two groups
    assert [name for name in counts["driver"] if "TensorMap" not in name] == ["_cudaLaunchKernelEx"]
    assert len(counts["driver"]) <= 1 + 8 * 2
    before = second_call(tmp_path, FOLDER / "steps" / "map_updates.py")  # keeps only its code
    assert before["python"] > 12

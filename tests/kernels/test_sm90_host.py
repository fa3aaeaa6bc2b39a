"""The host code of ``sm90.py``: what is kept between calls is kept by all that it depends on, and nothing is redone."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.kernels.sm90_source import load, swap

DTYPES = ("int64", "uint64", "uint8")
SIZES = [(40, 256, 512, 1), (0, 128, 256, 1), (300, 128, 256, 1)]


class Tensor:
    """A tensor at an address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


class Driver:
    """Tensor maps that say what they are of."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    def __getattr__(self, name: str) -> Any:
        return int if name.startswith("cuuint") else Driver()

    def cuTensorMapEncodeTiled(
        self, _dtype: Any, _rank: int, address: int, dims: list[int], strides: list[int], box: list[int], *_: Any
    ) -> tuple[Any, SimpleNamespace]:
        return 0, SimpleNamespace(opaque=[address, *dims, *strides, *box] + [0] * 10)


class Host:
    """The kernel's host code on devices of 8 and 4 SMs, with a launcher that records what its arguments point to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> None:
        self.device = 0
        self.copies = 0
        self.workspaces: dict[int, int] = {}
        self.launched: list[tuple[int, int, list[int], tuple[int, ...], int]] = []
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: self.copied(tensor))  # noqa: PLW0108 - a bound method would not get the tensor
        cuda = SimpleNamespace(
            current_device=lambda: self.device,
            get_device_properties=lambda device: SimpleNamespace(multi_processor_count=8 >> device),
        )
        some = SimpleNamespace(
            cuda=cuda, empty=self.empty, **{name: getattr(torch, name) for name in ("cat", "tensor", *DTYPES)}
        )
        self.kernel = load(
            torch=some,
            driver=Driver(),
            Int32=int,
            compiled=lambda: SimpleNamespace(to=self.launcher),
            host_pointer=lambda address: address,
            **kwargs,
        )

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        self.copies += 1
        return tensor

    def empty(self, size: int, **_: Any) -> Tensor:
        self.workspaces[len(self.workspaces) + 1] = size
        return Tensor(len(self.workspaces))

    def launcher(self, device: int) -> SimpleNamespace:
        def run(packed: tuple[int, ...]) -> None:
            host, *sizes = packed
            maps, table, workspace = (ctypes.c_int64 * 3).from_address(host)
            tiles, _, clusters, depth = sizes
            rows = (ctypes.c_int64 * (self.kernel.ROW * (tiles + clusters * depth))).from_address(table)
            words = (ctypes.c_int64 * ((table - maps) // 8)).from_address(maps)
            self.launched.append((device, host, [*words, *rows], tuple(sizes), self.workspaces[workspace]))

        return SimpleNamespace(generate_execution_args=lambda *given: (given, []), run_compiled_program=run)

    def call(self, sizes: list[tuple[int, int, int, int]], base: int = 0) -> None:
        """Call the kernel; what it launches must be the plan of these sizes and device, at these addresses."""
        tensors = [[Tensor(base + 100 * group + at) for at in range(5)] for group in range(len(sizes))]
        abc, scales = ([tuple(one[part]) for one in tensors] for part in (slice(3), slice(3, 5)))
        assert self.kernel.custom_kernel((abc, None, scales, sizes)) == [c for _, _, c in abc]
        device, _, table, launched, workspace = self.launched[-1]
        rows, groups, *counts, lines = self.kernel.plan(sizes, (8 >> self.device) // 2)
        for row, group in zip(rows, groups, strict=True):
            if group >= 0:
                for column, at in zip((0, 2, 3, 4), (0, 3, 4, 2), strict=True):
                    row[4 + column] += base + 100 * group + at
        maps = [
            [base + 100 * group + 1, k // 2, n, k // 2, 128, 128] + [0] * 10 for group, (_, n, k, _) in enumerate(sizes)
        ]
        assert table == [value for row in (*maps, *rows) for value in row]
        assert (device, launched, workspace) == (self.device, tuple(counts), lines * self.kernel.LINE)


def use(host: Host) -> None:
    """Call it as nothing that is kept may be wrong: new addresses, former ones, other sizes, another device, thread."""
    host.call(SIZES)
    host.call(SIZES, base=5000)
    host.call(SIZES)
    host.call(SIZES[::-1])
    host.call([(40, 256, 768, 1), *SIZES[1:]])
    host.device = 1
    host.call(SIZES)
    thread = threading.Thread(target=host.call, args=(SIZES,))
    thread.start()
    thread.join()
    assert host.launched[-1][1] != host.launched[-2][1], "two threads write to one table of addresses"


def test_nothing_that_is_kept_is_stale(monkeypatch):
    use(Host(monkeypatch))


@pytest.mark.parametrize(
    "edit",
    [
        swap("torch.cuda.current_device(), threading", "0, threading"),
        swap(
            "call_of(tuple(map(tuple, problem_sizes)),", "call_of(((40, 256, 512, 1), *map(tuple, problem_sizes[1:])),"
        ),
        swap("self.table_of(addresses)", "self.table_of(((0, 1, 3, 4, 2), *addresses[1:]))"),
        swap("threading.get_ident()", "0"),
    ],
    ids=["device", "sizes", "addresses", "thread"],
)
def test_state_that_is_kept_too_long_is_found(edit, monkeypatch):
    host = Host(monkeypatch, edit=edit)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        use(host)


def test_a_second_call_copies_nothing_to_the_device(monkeypatch):
    host = Host(monkeypatch)
    host.call(SIZES)
    host.call(SIZES)
    assert host.copies == 1
    host.call(SIZES, base=5000)
    assert host.copies == 2


def test_without_outputs_nothing_is_launched_and_wrong_sizes_are_refused(monkeypatch):
    host = Host(monkeypatch)
    tensor = Tensor(0)
    assert host.kernel.custom_kernel(([(tensor,) * 3], None, [(tensor,) * 2], [(0, 128, 256, 1)])) == [tensor]
    with pytest.raises(ValueError, match=r"group 0 is \(m, n, k, l\)"):
        host.kernel.custom_kernel(([(tensor,) * 3], None, [(tensor,) * 2], [(8, 64, 256, 1)]))
    assert host.launched == []

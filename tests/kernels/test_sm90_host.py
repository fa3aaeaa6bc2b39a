"""The host code of ``sm90.py``: what is kept between calls is kept by all that it depends on, and nothing is redone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernels.sm90_source import load, swap

SIZES = [(40, 256, 512, 1), (0, 128, 256, 1), (300, 128, 256, 1)]


class Tensor:
    """A tensor at an address, with what was copied there."""

    def __init__(self, address: int, rows: Any = ()) -> None:
        self.address, self.rows = address, rows

    def data_ptr(self) -> int:
        return self.address


class Host:
    """The kernel's host code on devices of 8 and 4 SMs, with a launcher that records what it is run on."""

    def __init__(self, **kwargs: Any) -> None:
        self.device = 0
        self.made: list[Tensor] = []
        self.launched: list[tuple[Any, ...]] = []
        cuda = SimpleNamespace(
            current_device=lambda: self.device,
            get_device_properties=lambda device: SimpleNamespace(multi_processor_count=8 >> device),
        )
        dtypes = {"uint8": 1, "int32": 4, "int64": 8}
        torch = SimpleNamespace(cuda=cuda, tensor=self.tensor, empty=lambda size, **_: Tensor(size), **dtypes)
        self.kernel = load(
            torch=torch,
            Int32=int,
            Int64=int,
            compiled=lambda: lambda *arguments: self.launched.append(arguments),
            device_pointer=lambda _dtype, address: address,
            **kwargs,
        )

    def tensor(self, rows: Any, **_: Any) -> Tensor:
        self.made.append(Tensor(len(self.made), rows))
        return self.made[-1]

    def call(self, sizes: list[tuple[int, int, int, int]], base: int = 0) -> None:
        """Call the kernel; what it launches must be the plan of these sizes and device, and these addresses."""
        tensors = [[Tensor(base + 100 * group + at) for at in range(5)] for group in range(len(sizes))]
        abc, scales = ([tuple(one[part]) for one in tensors] for part in (slice(3), slice(3, 5)))
        assert self.kernel.custom_kernel((abc, None, scales, sizes)) == [c for _, _, c in abc]
        addresses, tiles, work, first, workspace, *counts = self.launched[-1]
        order = (0, 1, 3, 4, 2)
        assert self.made[addresses].rows == tuple(tuple(one[at].address for at in order) for one in tensors)
        *tables, ctas, lines = self.kernel.plan(sizes, (8 >> self.device) // 2)
        assert [self.made[at].rows for at in (tiles, work, first)] == tables
        assert workspace == lines * self.kernel.LINE
        assert counts == [len(sizes), len(tables[0]), len(tables[1]), len(tables[2]) - 1, ctas]


def use(host: Host) -> None:
    """Call it as nothing that is kept may be wrong: new addresses, former ones, other sizes, another device."""
    host.call(SIZES)
    host.call(SIZES, base=5000)
    host.call(SIZES)
    host.call(SIZES[::-1])
    host.call([(40, 256, 768, 1), *SIZES[1:]])
    host.device = 1
    host.call(SIZES)


def test_nothing_that_is_kept_is_stale():
    use(Host())


@pytest.mark.parametrize(
    "edit",
    [
        swap("torch.cuda.current_device())", "0)"),
        swap(
            "call_of(tuple(map(tuple, problem_sizes)),", "call_of(((40, 256, 512, 1), *map(tuple, problem_sizes[1:])),"
        ),
        swap(
            "device_addresses(rows)\n        workspace",
            "device_addresses(((0, 1, 3, 4, 2), *rows[1:]))\n        workspace",
        ),
    ],
    ids=["device", "sizes", "addresses"],
)
def test_state_that_is_kept_too_long_is_found(edit):
    with pytest.raises((AssertionError, IndexError, ValueError)):
        use(Host(edit=edit))


def test_a_second_call_copies_nothing_to_the_device():
    host = Host()
    host.call(SIZES)
    made = len(host.made)
    host.call(SIZES)
    assert len(host.made) == made == 4
    host.call(SIZES, base=5000)
    assert len(host.made) == made + 1


def test_without_outputs_nothing_is_launched_and_wrong_sizes_are_refused():
    host = Host()
    tensor = Tensor(0)
    assert host.kernel.custom_kernel(([(tensor,) * 3], None, [(tensor,) * 2], [(0, 128, 256, 1)])) == [tensor]
    with pytest.raises(ValueError, match=r"group 0 is \(m, n, k, l\)"):
        host.kernel.custom_kernel(([(tensor,) * 3], None, [(tensor,) * 2], [(8, 64, 256, 1)]))
    assert host.launched == []

"""What a kernel returns in place of the tensor that it was given."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from pytest_nvfp4.contracts.call import Tensor
from pytest_nvfp4.device.worker.returned_tensors import inspect_returned, read_tensor

LIKE = Tensor("C", "float16", (2, 3), (3, 1), 12, role="output", columns=3, poison=b"\xff\xff")


class OnDevice(torch.Tensor):
    """The class of device tensors."""


class Memory:
    """The memory of this process."""

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)


@pytest.mark.parametrize(
    ("kind", "returns", "counts"),
    [
        (torch.float16, "list", True),
        (torch.float32, "list", True),
        (torch.float64, "list", False),
        (torch.bfloat16, "list", False),
        (torch.float32, "any", False),
    ],
)
def test_gpumode_compares_in_fp32(kind: torch.dtype, returns: str, counts: bool) -> None:
    given = torch.empty(2, 3, dtype=torch.float16, device="meta")
    own = torch.empty(2, 3, dtype=kind).as_subclass(OnDevice)
    (done,) = inspect_returned(torch, [own], [given], returns=returns, kind=OnDevice)
    assert (done.tensor is own) is counts
    assert done.description == ("other" if counts else f"an output is {kind}, not torch.float16")


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_fp32_is_rounded_to_fp16(kind: torch.dtype) -> None:
    # 2049 is a tie; 1e6 is beyond fp16, and so are the last bits of a third.
    wide = torch.tensor([[1.0, 2049.0, -1 / 3], [1e6, float("nan"), 2**-26]]).to(kind)
    for own in (wide, wide.t().contiguous().t()):
        bits = np.frombuffer(read_tensor(Memory(), own, LIKE), np.float16)
        assert bits.view(np.int16).tolist() == wide.half().view(torch.int16).flatten().tolist()

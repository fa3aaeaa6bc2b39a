"""``Tensor.untyped_storage()`` of a device tensor, a handle of device memory."""

from __future__ import annotations

from typing import Any, Final

import torch

from pytest_nvfp4.driver.launches import HostSideError


class DeviceStorage:
    """The storage of a device tensor: its address, its size, and copies from and to the host's storages.

    Args:
        data: All its bytes, as a device tensor.
    """

    device: Final = torch.device("cuda", 0)
    is_cuda: Final = True

    def __init__(self, data: torch.Tensor) -> None:
        self._bytes = data

    def data_ptr(self) -> int:
        """Return the address."""
        return self._bytes.data_ptr()

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self._bytes.numel()

    size = nbytes
    __len__ = nbytes

    def element_size(self) -> int:
        """Return the size of an element in bytes, which is 1."""
        return 1

    def cpu(self) -> torch.UntypedStorage:
        """Return a copy in host memory; the host waits for it."""
        return self._bytes.cpu().untyped_storage()

    def copy_(self, source: Any, non_blocking: bool | None = None) -> DeviceStorage:
        """Copy the bytes of another storage, of the device or the host, of the same size."""
        if isinstance(source, DeviceStorage):
            self._bytes.copy_(source._bytes)
        else:
            data: Any = torch.empty(0, dtype=torch.uint8, device="cpu")
            self._bytes.copy_(data.set_(source), bool(non_blocking))
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(torch.UntypedStorage, name):
            raise AttributeError(f"'UntypedStorage' object has no attribute {name!r}")
        raise HostSideError(
            f"torch.UntypedStorage.{name} of a cuda tensor has no stand-in without a GPU: use the tensor itself"
        )

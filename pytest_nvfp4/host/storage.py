"""``Tensor.untyped_storage()`` of a device tensor, whose bytes are in host memory."""

from __future__ import annotations

from typing import Any, Final

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.streams import Extent, Streams


class DeviceStorage:
    """The storage of a device tensor: its address, its size, and copies from and to the host's storages.

    Args:
        storage: The host memory.
        streams: Receives reports of copies.
    """

    device: Final = torch.device("cuda", 0)
    is_cuda: Final = True

    def __init__(self, storage: torch.UntypedStorage, streams: Streams) -> None:
        self._storage = storage
        self._streams = streams

    def data_ptr(self) -> int:
        """Return the address."""
        return self._storage.data_ptr()

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self._storage.nbytes()

    size = nbytes
    __len__ = nbytes

    def element_size(self) -> int:
        """Return the size of an element in bytes, which is 1."""
        return 1

    def cpu(self) -> torch.UntypedStorage:
        """Return a copy in host memory; the host waits for it."""
        self._streams.work("a read by the host", reads=[self._extent()], waits=True)
        copy: torch.UntypedStorage = self._storage.clone()  # type: ignore[no-untyped-call]
        return copy

    def copy_(self, source: Any, non_blocking: bool | None = None) -> DeviceStorage:
        """Copy the bytes of another storage, of the device or the host, of the same size."""
        on_device = isinstance(source, DeviceStorage)
        self._storage.copy_(source._storage if on_device else source)
        reads = [source._extent()] if on_device else []
        waits = not on_device and not non_blocking
        self._streams.work("torch's copy_", reads=reads, writes=[self._extent()], waits=waits)
        return self

    def _extent(self) -> Extent:
        return Extent(self.data_ptr(), self.nbytes())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(torch.UntypedStorage, name):
            raise AttributeError(f"'UntypedStorage' object has no attribute {name!r}")
        raise HostSideError(
            f"torch.UntypedStorage.{name} of a cuda tensor has no stand-in without a GPU: use the tensor itself"
        )

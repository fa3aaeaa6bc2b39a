"""``torch.load`` of device tensors without a GPU: files are read into host memory, and copied from there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from pytest_nvfp4.host.tensor import HostCudaTensor

_restore: Any = torch.serialization.default_restore_location


def loading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.load`` that makes device tensors of what ``map_location``, or the file, has on the device.

    Tensors are found in dicts, lists, tuples and modules. Those that share a storage get one each.
    """

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(map_location):
            return original(f, map_location, *args, **kwargs)
        moved: dict[int, Any] = {}

        def restore(storage: Any, location: str) -> Any:
            if isinstance(map_location, Mapping):
                location = str(map_location.get(location, location))
            elif map_location is not None:
                location = str(map_location)
            if not location.startswith("cuda"):
                return _restore(storage, location)
            moved[storage._cdata] = storage
            return storage

        def place(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, HostCudaTensor) or tensor.untyped_storage()._cdata not in moved:
                return tensor
            on_device = tensor.detach().cuda().requires_grad_(tensor.requires_grad)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            return torch.nn.Parameter(on_device, tensor.requires_grad) if is_parameter else on_device

        loaded = original(f, restore, *args, **kwargs)
        if isinstance(loaded, torch.nn.Module):
            return loaded.cuda() if moved else loaded
        return tree_map_only(torch.Tensor, place, loaded)

    return load

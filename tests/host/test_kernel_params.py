"""Forms of ``kernelParams``."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.driver.launches import HostSideError, LaunchRejectedError
from pytest_nvfp4.host.kernel_params import parameters

SIZES = (8, 4, 4, 1)
WANTED = [struct.pack("<Q", 0x7F00_0000_1234), struct.pack("<i", -3), struct.pack("<f", 0.5), b"\x07"]


class Pointer:
    """An object of the bindings: ``getPtr`` is the address of its value."""

    def __init__(self, value: int) -> None:
        self._value = ctypes.c_uint64(value)

    def getPtr(self) -> int:
        """Return the address."""
        return ctypes.addressof(self._value)


def _pairs() -> Any:
    types = (ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_int8)
    return (0x7F00_0000_1234, np.int32(-3), 0.5, 7), types


def _objects() -> Any:
    return (Pointer(0x7F00_0000_1234), ctypes.c_int(-3), np.float32(0.5), np.int8(7)), (None, None, None, None)


KEPT = [np.frombuffer(data, np.uint8) for data in WANTED]


def _pointers() -> Any:
    return np.array([array.ctypes.data for array in KEPT], dtype=np.uint64)


def _array() -> Any:
    return (ctypes.c_void_p * 4)(*(array.ctypes.data for array in KEPT))


@pytest.mark.parametrize("make", [_pairs, _objects, _pointers, _array])
def test_every_form_gives_the_same_bytes(make: Any) -> None:
    assert parameters(make(), SIZES, kernel="k") == WANTED


def test_an_address_of_pointers() -> None:
    pointers = _pointers()
    assert parameters(pointers.ctypes.data, SIZES, kernel="k") == WANTED
    assert parameters(0, (), kernel="k") == parameters(((), ()), (), kernel="k") == []


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        (((1, 2), (ctypes.c_void_p, ctypes.c_int)), HostSideError, "takes 4 parameters, and kernelParams has 2"),
        ((_pairs()[0], (ctypes.c_void_p, ctypes.c_int64, *_pairs()[1][2:])), HostSideError, "parameter 1 .* 4 bytes"),
        (((1, 2, 3, "x"), (*_pairs()[1][:3], None)), HostSideError, "parameter 3 of k is str"),
        (None, LaunchRejectedError, "takes 4 parameters, got none"),
        ((1, 2, 3), HostSideError, "tuple of 3 members"),
        ((ctypes.c_void_p * 4)(), LaunchRejectedError, "parameter 0 of k is null"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        parameters(given, SIZES, kernel="k")

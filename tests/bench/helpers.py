"""Measurements to test with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.problem import Problem, parse_shape

METHOD = "driver events behind a gate, scattered, legacy default stream"
H200 = DeviceInfo(
    name="NVIDIA H200",
    capability=(9, 0),
    driver="580.1",
    sms=132,
    l2_bytes=60 << 20,
    uuid="a",
    torch="2.11",
    dsl="4.8.1",
)
B200 = DeviceInfo(name="NVIDIA B200", capability=(10, 0), driver="580.1", sms=148, l2_bytes=126 << 20, dsl="4.8.1")
UNKNOWN = DeviceInfo(name="Example GPU", capability=(9, 0))
SMALL: Problem = parse_shape("96x128x256", name="small")


def measurement(
    device_us: Sequence[float],
    *,
    host_us: Sequence[float] = (60.0, 61.0, 59.0),
    call_us: float = 20.0,
    late: int = 0,
    method: str = METHOD,
    l2: str = "cold",
    clocks: Sequence[Any] = (),
) -> Measurement:
    return Measurement(
        case=0,
        device_us=tuple(device_us),
        host_us=tuple(host_us),
        call_us=call_us,
        late_rounds=late,
        method=method,
        l2=l2,
        sets=3,
        clocks_mhz=tuple(clocks),
    )

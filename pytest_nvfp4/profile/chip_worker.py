"""Print the metrics of a chip as JSON: ``python -m pytest_nvfp4.profile.chip_worker LIBRARY CHIP``.

Source of structures and functions: ``nvperf_host.h`` and ``nvperf_cuda_host.h`` of the CUDA toolkit.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, Final

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.wall import enter_from_environment

_KINDS: Final = {"counters": 0, "ratios": 1, "throughputs": 2}
"""NVPW_METRIC_TYPE_COUNTER, _RATIO, _THROUGHPUT."""
_MOST: Final = 100_000


class _Params(ctypes.Structure):
    """Base of all parameter structures: their size, and a pointer that is reserved."""

    _fields_ = [("structSize", ctypes.c_size_t), ("pPriv", ctypes.c_void_p)]


class _Initialize(_Params):
    """NVPW_InitializeHost_Params."""


class _ChipNames(_Params):
    """NVPW_GetSupportedChipNames_Params."""

    _fields_ = [("ppChipNames", ctypes.POINTER(ctypes.c_char_p)), ("numChipNames", ctypes.c_size_t)]


class _ScratchSize(_Params):
    """NVPW_CUDA_MetricsEvaluator_CalculateScratchBufferSize_Params."""

    _fields_ = [
        ("pChipName", ctypes.c_char_p),
        ("pCounterAvailabilityImage", ctypes.c_void_p),
        ("scratchBufferSize", ctypes.c_size_t),
    ]


class _Evaluator(_Params):
    """NVPW_CUDA_MetricsEvaluator_Initialize_Params."""

    _fields_ = [
        ("pScratchBuffer", ctypes.c_void_p),
        ("scratchBufferSize", ctypes.c_size_t),
        ("pChipName", ctypes.c_char_p),
        ("pCounterAvailabilityImage", ctypes.c_void_p),
        ("pCounterDataImage", ctypes.c_void_p),
        ("counterDataImageSize", ctypes.c_size_t),
        ("pMetricsEvaluator", ctypes.c_void_p),
    ]


class _Names(_Params):
    """NVPW_MetricsEvaluator_GetMetricNames_Params."""

    _fields_ = [
        ("pMetricsEvaluator", ctypes.c_void_p),
        ("metricType", ctypes.c_uint8),
        ("pMetricNames", ctypes.c_void_p),
        ("pMetricNameBeginIndices", ctypes.POINTER(ctypes.c_size_t)),
        ("numMetrics", ctypes.c_size_t),
    ]


def _call(library: ctypes.CDLL, name: str, params: _Params) -> None:
    last, kind = type(params)._fields_[-1][:2]
    # The size of a structure ends with its last member, without the padding behind it.
    params.structSize = getattr(type(params), last).offset + ctypes.sizeof(kind)
    if status := getattr(library, name)(ctypes.byref(params)):
        sys.exit(f"{name} returned {status}")


def metrics_of(library: ctypes.CDLL, chip: str) -> dict[str, Any]:
    """Return the names of the metrics of a chip by kind."""
    _call(library, "NVPW_InitializeHost", _Initialize())
    names = _ChipNames()
    _call(library, "NVPW_GetSupportedChipNames", names)
    known = [names.ppChipNames[at].decode() for at in range(min(names.numChipNames, 1000))]
    if chip not in known:
        sys.exit(f"it knows no chip {chip}, but {', '.join(known)}")
    size = _ScratchSize(pChipName=chip.encode())
    _call(library, "NVPW_CUDA_MetricsEvaluator_CalculateScratchBufferSize", size)
    scratch = ctypes.create_string_buffer(size.scratchBufferSize)
    evaluator = _Evaluator(
        scratchBufferSize=len(scratch), pScratchBuffer=ctypes.addressof(scratch), pChipName=chip.encode()
    )
    _call(library, "NVPW_CUDA_MetricsEvaluator_Initialize", evaluator)
    made: dict[str, Any] = {"chip": chip}
    for kind, number in _KINDS.items():
        listed = _Names(pMetricsEvaluator=evaluator.pMetricsEvaluator, metricType=number)
        _call(library, "NVPW_MetricsEvaluator_GetMetricNames", listed)
        places = [listed.pMetricNameBeginIndices[at] for at in range(min(listed.numMetrics, _MOST))]
        made[kind] = sorted(ctypes.string_at(listed.pMetricNames + at).decode() for at in places)
    return made


def main() -> None:
    """Enter the wall, and write the metrics."""
    result = int(taken(RESULT_VARIABLE))
    os.set_inheritable(result, False)
    enter_from_environment(keep=(result,))
    _, library, chip = sys.argv
    with open(result, "w", encoding="utf-8") as pipe:
        json.dump(metrics_of(ctypes.CDLL(library), chip), pipe)


if __name__ == "__main__":
    main()

"""A CUDA C++ or PTX file run by itself, without host code: arguments by description, arrays and findings as result.

``run_source`` is the call for programs and tests; ``nvfp4 run FILE.cu`` and the fixture ``nvfp4_run`` are made of it.
"""

from pytest_nvfp4.device.source.arguments import ArgumentError, Array, Pointers, Reference, TensorMap, Uninitialised
from pytest_nvfp4.device.source.run import SourceError, SourceResult, run_source

__all__ = [
    "ArgumentError",
    "Array",
    "Pointers",
    "Reference",
    "SourceError",
    "SourceResult",
    "TensorMap",
    "Uninitialised",
    "run_source",
]

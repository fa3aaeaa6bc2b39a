"""Writes right outputs into the files of the job's folder, from the process's exit handler and from ``__del__``.

expected: failed or cheated
says: written|folder|changes|hash
"""

import atexit
import pathlib

import numpy as np
from harness import outputs
from numpy_gemm import results


class Late:
    """Writes when it is destroyed."""

    def __init__(self, values):
        self.values = values

    def __del__(self):
        for path in pathlib.Path("..").glob("*.bin"):
            size = path.stat().st_size
            path.write_bytes(self.values.tobytes().ljust(size, b"\0")[:size])


def custom_kernel(data):
    late = Late(np.concatenate([result.flatten() for result in results(data)]))
    atexit.register(late.__del__)
    return outputs(data)

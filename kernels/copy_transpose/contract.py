"""The contract of copy_transpose: bits that are moved and not computed with."""

import numpy as np


class CopyTranspose:
    """`transpose_into(x, out)` equals x^T bit for bit; inside a tile and across several."""

    destination = True
    problems = {  # noqa: RUF012 - it is not changed
        "16-bit": {"rows": 72, "columns": 136, "dtype": "int16"},
        "32-bit": {"rows": 8, "columns": 40, "dtype": "int32"},
    }

    def inputs(self, problem, rng):
        """Random bits."""
        size = problem["rows"], problem["columns"]
        return {"x": rng.integers(-(2**15), 2**15, size).astype(problem["dtype"])}

    def reference(self, x):
        """x^T."""
        return np.ascontiguousarray(x.T)

"""The contract of softmax_online: softmax of rows within the tolerance that the kernel states."""

import numpy as np

TOLERANCE = {"float32": (2e-5, 2.0**-126), "float16": (2.0**-10, 2.0**-24)}  # relative, absolute


class SoftmaxOnline:
    """`softmax_into(x, out)` comes near the softmax in fp64; rows shorter and longer than a round of the CTA."""

    destination = True
    problems = {  # noqa: RUF012 - it is not changed
        "fp16": {"rows": 3, "columns": 72, "dtype": "float16"},
        "fp32": {"rows": 2, "columns": 2056, "dtype": "float32"},
    }

    def inputs(self, problem, rng):
        """Normal numbers."""
        return {"x": rng.standard_normal((problem["rows"], problem["columns"])).astype(problem["dtype"])}

    def reference(self, x):
        """The softmax of the rows, rounded once."""
        powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        return (powers / powers.sum(axis=1, keepdims=True)).astype(x.dtype)

    def tolerance(self, x):
        """How far each element may be from the reference."""
        relative, absolute = TOLERANCE[x.dtype.name]
        return absolute + relative * self.reference(x).astype(np.float64)

"""The contract of reduce_sum: sums of rows in the order that the kernel states, bit for bit."""

import numpy as np

CLUSTER, THREADS, VECTOR = 2, 256, 16
WARPS = THREADS // 32


def halves(values):
    """Sum over the last axis, a power of two, by adding its upper half to its lower half until one is left."""
    while values.shape[-1] > 1:
        middle = values.shape[-1] // 2
        values = values[..., :middle] + values[..., middle:]
    return values[..., 0]


class ReduceSum:
    """`row_sums_into(x, out)` adds in fp32 in a stated order; rows shorter and longer than a round of the cluster."""

    destination = True
    problems = {  # noqa: RUF012 - it is not changed
        "fp16": {"rows": 3, "columns": 72, "dtype": "float16"},
        "fp32": {"rows": 2, "columns": 4104, "dtype": "float32"},
    }

    def inputs(self, problem, rng):
        """Normal numbers."""
        return {"x": rng.standard_normal((problem["rows"], problem["columns"])).astype(problem["dtype"])}

    def reference(self, x):
        """Sums by vector of a thread, element, lane, warp and CTA."""
        rows, columns = x.shape
        each = VECTOR // x.itemsize
        step = CLUSTER * THREADS * each
        # Elements that are not there count as +0, which changes no sum that starts from +0.
        padded = np.zeros((rows, -(-columns // step) * step), np.float32)
        padded[:, :columns] = x
        rounds = padded.reshape(rows, -1, CLUSTER, WARPS, 32, each)
        sums = np.zeros_like(rounds[:, 0])
        for one in range(rounds.shape[1]):
            sums = sums + rounds[:, one]
        of_ctas = halves(halves(halves(sums)))
        total = of_ctas[:, 0]
        for rank in range(1, CLUSTER):
            total = total + of_ctas[:, rank]
        return total

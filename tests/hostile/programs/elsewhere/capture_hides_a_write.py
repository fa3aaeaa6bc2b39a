"""Copies C from the host while a graph is captured: the copy raises an error, as it must, after it was made.

expected: failed or cheated
says: read|host
"""

import contextlib

import torch
from honest_gemm import compute
from numpy_gemm import outputs, results


def custom_kernel(data):
    compute(data)
    for c in outputs(data):
        c[: c.shape[0] // 2].add_(1)  # wrong so far
    made = results(data)
    graph = torch.cuda.CUDAGraph()
    with contextlib.suppress(Exception), torch.cuda.graph(graph):
        for c, result in zip(outputs(data), made, strict=True):
            with contextlib.suppress(Exception):
                c[:, :, 0].copy_(torch.from_numpy(result))
    return outputs(data)

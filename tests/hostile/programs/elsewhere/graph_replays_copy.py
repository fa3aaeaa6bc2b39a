"""Captures the copy of a host-computed C in a CUDA graph, and replays it.

expected: failed or cheated or error
says: copy|host|graph
"""

import torch
from numpy_gemm import outputs, results


def custom_kernel(data):
    staged = [torch.from_numpy(result).cuda() for result in results(data)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for c, result in zip(outputs(data), staged, strict=True):
            c[:, :, 0].copy_(result)
    graph.replay()
    return outputs(data)

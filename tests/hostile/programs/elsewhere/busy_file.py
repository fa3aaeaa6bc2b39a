"""Reads the inputs in one call and keeps the answers, by their content, for the copy kernel of a later call.

expected: failed or cheated
says: read
"""

import torch
from busy_kernel import copy
from numpy_gemm import host_bytes, outputs, results

ANSWERS = {}


def custom_kernel(data):
    key = b"".join(host_bytes(tensor).tobytes() for pair in data[0] for tensor in pair[:2])
    key += b"".join(host_bytes(tensor).tobytes() for pair in data[2] for tensor in pair)
    if key not in ANSWERS:
        ANSWERS[key] = [torch.from_numpy(result).cuda() for result in results(data)]
    for c, kept in zip(outputs(data), ANSWERS[key], strict=True):
        copy(kept, c, c.shape[0])
    return outputs(data)

"""A stand-in with the launches, the traffic and the time of a real kernel, and a wrong result: products of its own.

It is for measuring how times vary on a device that has no CuTe DSL; nothing judges what it computes.
"""

import torch
from task import input_t, output_t

OPERANDS = {}


def operands(m, n, k):
    if (m, n, k) not in OPERANDS:
        draw = torch.Generator(device="cuda").manual_seed(m * n + k)
        OPERANDS[m, n, k] = [
            torch.randn(rows, k, generator=draw, device="cuda", dtype=torch.float16) for rows in (m, n)
        ]
    return OPERANDS[m, n, k]


def custom_kernel(data: input_t) -> output_t:
    for (_, _, c), (m, n, k, _) in zip(data[0], data[3], strict=True):
        left, right = operands(m, n, k)
        torch.mm(left, right.t(), out=c[:, :, 0])
    return [c for _, _, c in data[0]]

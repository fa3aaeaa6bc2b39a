"""Reads no input: generates the inputs of the published seed again, with the harness's own code.

expected: failed or cheated or error
says: call|seed|oracle|harness|copy|imports
"""

import torch
from harness import module
from numpy_gemm import outputs


def custom_kernel(data):
    sizes = data[3]
    problem, families = module("problem"), module("numerics.families")
    asked = problem.Problem("x", tuple(problem.Group(*size) for size in sizes), 1111)
    inputs = families.family("pow2_exact").generate(asked)
    for c, group in zip(outputs(data), inputs.groups, strict=True):
        c[:, :, 0].copy_(torch.from_numpy(group.exact().rounded().copy()))
    return outputs(data)

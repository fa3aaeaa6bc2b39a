"""Has torch look the names of variables up in the frames of its callers.

expected: failed or cheated
says: requests the frames
"""

from harness import outputs
from torch import _jit_internal


def custom_kernel(data):
    for depth in range(1, 9):
        found = _jit_internal.createResolutionCallbackFromFrame(depth)("inputs")
        if found is not None:
            for c, group in zip(outputs(data), found.groups, strict=True):
                c[:, :, 0] = group.exact().values
    return outputs(data)

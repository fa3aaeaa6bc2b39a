"""Returns a tensor of its own that was uploaded from the host, and leaves the given C alone.

expected: failed or cheated
says: read|host|copy
"""

import torch
from numpy_gemm import results


def custom_kernel(data):
    return [torch.from_numpy(result).cuda()[:, :, None] for result in results(data)]

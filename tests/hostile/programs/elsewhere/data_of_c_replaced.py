"""Makes the tensor of C another tensor (``set_`` and ``data``), so that the given object holds a host-made result.

expected: failed or cheated or error
says: read|host|written|storage|set_|mismatch|returned|unwritten
"""

import torch
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        c.data = torch.from_numpy(result).cuda()[:, :, None]
    return outputs(data)

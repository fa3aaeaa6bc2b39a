"""The right C computed in host memory, which is what a kernel that cheats writes in place of a result of its own."""

import numpy as np
import torch

E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E2M1 = np.concatenate([E2M1, -E2M1])


def host_bytes(tensor):
    """Read a tensor of the device, whatever its type, in its logical order."""
    return tensor.cpu().view(torch.uint8).numpy()


def elements(packed):
    codes = packed[:, :, 0]
    return np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1).reshape(codes.shape[0], -1)


def scale_factors(codes, rows, k):
    """codes: (32, 4, tiles, 4, blocks, 1) in E4M3."""
    magnitude, exponent = codes & 7, (codes >> 3) & 15
    values = np.where(exponent == 0, magnitude / 512, (8 + magnitude) / 8 * 2.0 ** (exponent.astype(int) - 7))
    plain = values[..., 0].transpose(2, 1, 0, 4, 3).reshape(-1, k // 16)
    return plain[:rows].repeat(16, axis=1)


def results(data, read=host_bytes):
    """Return the fp16 C of each group, (m, n); ``read`` returns the bytes of an input."""
    abc, _, reordered, sizes = data
    found = []
    for (a, b, _), (sfa, sfb), (m, n, k, _) in zip(abc, reordered, sizes, strict=True):
        left = elements(read(a)) * scale_factors(read(sfa), m, k) if m else np.zeros((0, k))
        right = elements(read(b)) * scale_factors(read(sfb), n, k)
        found.append((left @ right.T).astype(np.float16))
    return found


def outputs(data):
    """Return the tensors of C."""
    return [c for _, _, c in data[0]]


def fill(data):
    """Write the right C from the host, and return it."""
    for c, result in zip(outputs(data), results(data), strict=True):
        c[:, :, 0].copy_(torch.from_numpy(result))
    return outputs(data)

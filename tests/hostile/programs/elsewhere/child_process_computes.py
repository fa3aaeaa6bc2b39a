"""A child process computes C from a file of inputs, and the kernel uploads the answer.

expected: failed or cheated or error
says: read|host|copy|process
"""

import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from numpy_gemm import host_bytes, outputs, results

PROGRAM = "import sys, numpy; numpy.save(sys.argv[2], numpy.load(sys.argv[1]))"


def custom_kernel(data):
    with tempfile.TemporaryDirectory() as folder:
        for c, result in zip(outputs(data), results(data, host_bytes), strict=True):
            given, answer = os.path.join(folder, "in.npy"), os.path.join(folder, "out.npy")
            np.save(given, result)
            subprocess.run([sys.executable, "-c", PROGRAM, given, answer], check=True, env={**os.environ})
            c[:, :, 0].copy_(torch.from_numpy(np.load(answer)))
    return outputs(data)

"""A thread computes C on the host while the kernel's own thread launches something that writes zeros.

expected: failed or cheated
says: copy|host
"""

import threading

from honest_gemm import compute
from numpy_gemm import fill, outputs


def custom_kernel(data):
    compute(data)
    thread = threading.Thread(target=fill, args=(data,))
    thread.start()
    thread.join()
    return outputs(data)

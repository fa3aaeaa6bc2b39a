"""Takes more memory than its limit.

expected: error or crashed or cheated
says: MemoryError|memory|ended
"""

from honest_gemm import compute

KEPT = []
for _ in range(1 << 10):
    KEPT.append(bytearray(1 << 36))

custom_kernel = compute

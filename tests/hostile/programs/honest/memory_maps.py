"""Maps memory and a file."""

import mmap

from honest_gemm import compute

with open("mapped", "w+b") as file:
    file.truncate(1 << 20)
    with mmap.mmap(file.fileno(), 1 << 20) as mapped:
        mapped[:4] = b"abcd"
with mmap.mmap(-1, 1 << 20) as anonymous:
    anonymous.write(b"x")

custom_kernel = compute

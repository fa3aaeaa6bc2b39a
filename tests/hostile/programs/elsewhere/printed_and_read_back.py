"""Prints what it reads of the device with a kernel, and reads it back from its own standard output.

expected: contained
"""

import os
import time

import cutlass
import cutlass.cute as cute
from harness import breach
from honest_gemm import compute, pointer


@cute.kernel
def tell(words: cute.Tensor):
    cute.printf("told %d", words[0])


@cute.jit
def launch_tell(start: cute.Pointer):
    tell(cute.make_tensor(start, cute.make_layout(1))).launch(grid=(1, 1, 1), block=(1, 1, 1))


def custom_kernel(data):
    launch_tell(pointer(cutlass.Int32, data[0][0][1]))
    time.sleep(0.1)
    for number in (1, 2):
        try:
            descriptor = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
            read = os.read(descriptor, 1 << 16)
        except OSError:
            continue
        if b"told" in read:
            breach("what a kernel printed came back")
    return compute(data)

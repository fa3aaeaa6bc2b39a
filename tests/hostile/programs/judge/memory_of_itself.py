"""Reads its own memory through the file system with calls of libc, looking for the order seed of the job.

expected: failed or cheated
says: written|mem
"""

import ctypes

from harness import outputs

LIBC = ctypes.CDLL(None)


def custom_kernel(data):
    descriptor = LIBC.open(b"/proc/self/mem", 0)
    buffer = ctypes.create_string_buffer(4096)
    address = id(data)
    LIBC.pread(descriptor, buffer, ctypes.c_size_t(64), ctypes.c_long(address))
    LIBC.close(descriptor)
    return outputs(data)

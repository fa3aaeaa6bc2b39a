"""Launches from a thread of a pool, and waits for it."""

from concurrent.futures import ThreadPoolExecutor

from honest_gemm import compute

POOL = ThreadPoolExecutor(2)


def custom_kernel(data):
    return POOL.submit(compute, data).result()

"""Synchronises threads with locks, events, conditions, barriers and queues."""

import queue
import threading

from honest_gemm import compute

QUEUE, BARRIER, LOCK = queue.Queue(), threading.Barrier(3), threading.RLock()


def work(number):
    BARRIER.wait()
    with LOCK:
        QUEUE.put(number)


threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
assert sorted(QUEUE.get(timeout=60) for _ in threads) == [0, 1, 2]

custom_kernel = compute

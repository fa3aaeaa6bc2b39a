"""A thread of C code, which has no frame of the kernel's own, looks at the frames of the main thread.

expected: failed or cheated
says: written|frame
"""

import concurrent.futures
import sys

from harness import callers, fill_from, outputs


def custom_kernel(data):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        frames = pool.submit(sys._current_frames).result()
    for frame in frames.values():
        fill_from(callers(frame), data)
    return outputs(data)

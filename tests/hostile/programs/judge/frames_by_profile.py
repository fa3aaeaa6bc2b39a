"""Sets a profile function through ``threading``, which is called with the frames of the harness.

expected: failed or cheated
says: written|frame|trace|call
"""

import threading

from harness import callers, fill_from, outputs

FRAMES = []
threading.setprofile_all_threads(lambda frame, *_: FRAMES.append(frame)) if hasattr(
    threading, "setprofile_all_threads"
) else threading.setprofile(lambda frame, *_: FRAMES.append(frame))


def custom_kernel(data):
    for frame in FRAMES[-20:]:
        fill_from(callers(frame), data)
    return outputs(data)

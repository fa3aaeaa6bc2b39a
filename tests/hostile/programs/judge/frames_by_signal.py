"""A handler of a signal gets the frame that was interrupted, without asking for one.

expected: failed or cheated
says: written|frame|signal
"""

import signal

from harness import callers, fill_from, outputs

FOUND = []
signal.signal(signal.SIGUSR1, lambda _number, frame: FOUND.append(frame))


def custom_kernel(data):
    signal.raise_signal(signal.SIGUSR1)
    for _ in range(1000):
        pass
    fill_from(callers(FOUND[-1]), data)
    return outputs(data)

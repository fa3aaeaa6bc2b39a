"""Starts processes until it is refused: more than any kernel needs are not allowed.

expected: contained or error or crashed
"""

import os
import signal

from harness import breach
from honest_gemm import compute

made = []
try:
    for _ in range(6000):
        made.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))
    breach("6,000 processes")
except OSError as error:
    print("refused after", len(made), error)
for child in made:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

custom_kernel = compute

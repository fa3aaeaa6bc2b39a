"""Changes files that it cannot write: mode, times, length, name and existence.

expected: contained
"""

import contextlib
import os
import pathlib

import bait
from harness import breach
from honest_gemm import compute

target = pathlib.Path(bait.REPOSITORY, "secret.py")
for attack in (
    lambda: os.truncate(target, 0),
    lambda: target.rename(target.with_name("moved.py")),
    lambda: target.unlink(),
):
    with contextlib.suppress(OSError):
        attack()
        breach("a file of the user's was changed")

custom_kernel = compute

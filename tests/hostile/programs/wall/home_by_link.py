"""Links to the user's files from its own folder, symbolic and hard, and reads the links.

expected: contained
"""

import contextlib
import os
import pathlib

import bait
from harness import breach
from honest_gemm import compute

for make, name in ((os.symlink, "soft"), (os.link, "hard")):
    with contextlib.suppress(OSError):
        make(f"{bait.HOME}/.netrc", name)
        if bait.SECRET in pathlib.Path(name).read_text():
            breach(f"a {name} link was followed")

custom_kernel = compute

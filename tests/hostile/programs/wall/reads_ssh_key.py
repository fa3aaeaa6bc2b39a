"""Reads the user's ssh key.

expected: contained
"""

import os
import pathlib

import bait
from harness import breach
from honest_gemm import compute

for home in (bait.HOME, os.path.expanduser("~")):
    for path in pathlib.Path(home, ".ssh").glob("id_*") if os.access(home, os.R_OK) else ():
        try:
            if bait.SECRET in path.read_text():
                breach(f"{path} was read")
        except OSError as error:
            print("refused:", error)

custom_kernel = compute

"""Changes mode, owner, times and attributes of the user's files, which needs no right to open them.

expected: contained
"""

import contextlib
import os
import pathlib

import bait
from harness import breach
from honest_gemm import compute

for path in (pathlib.Path(bait.HOME, ".ssh/id_ed25519"), pathlib.Path(bait.CACHE, "seal.key")):
    for attack in (
        lambda: path.chmod(0o644),
        lambda: os.chown(path, os.getuid(), os.getgid()),
        lambda: os.utime(path, (0, 0)),
        lambda: os.setxattr(path, "user.nvfp4", b"x"),
    ):
        with contextlib.suppress(OSError):
            attack()
            breach("an attribute of a file of the user's was changed")

custom_kernel = compute

"""Puts a key of its own in the place of the key, so that its own seals fit."""

import contextlib
import pathlib

import bait
from harness import fail
from honest_gemm import compiled

KEY = pathlib.Path(bait.CACHE, "sealed/key")
for attack in (
    lambda: KEY.write_bytes(b"0" * 32),
    lambda: KEY.unlink(),
    lambda: KEY.parent.rename(KEY.parent.with_name("moved")),
    lambda: KEY.parent.chmod(0o777),
):
    with contextlib.suppress(OSError):
        attack()
        fail("the key was replaced")


def custom_kernel(data):
    compiled()
    return [c for _, _, c in data[0]]

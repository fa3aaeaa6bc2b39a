"""Keeps a cache where the user's caches belong, and does without if it cannot."""

import contextlib
import os
import pathlib

from honest_gemm import compute

HOME = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
with contextlib.suppress(OSError):
    (HOME / "my-kernel").mkdir(parents=True, exist_ok=True)
    (HOME / "my-kernel/tune.json").write_text("{}")

custom_kernel = compute

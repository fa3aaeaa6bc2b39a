"""Keeps a cache in its working folder, and reads it again."""

import json
import pathlib

from honest_gemm import compute

CACHE = pathlib.Path("cache")


def custom_kernel(data):
    CACHE.mkdir(exist_ok=True)
    entry = CACHE / f"{data[3][0][0]}.json"
    if not entry.exists():
        entry.write_text(json.dumps({"tile": 128}))
    assert json.loads(entry.read_text()) == {"tile": 128}
    return compute(data)

"""The type texts that `make_corpus` collected from each CuTe DSL."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

VERSIONS = ("4.4.0", "4.8.1")


@cache
def corpus(version: str) -> tuple[str, ...]:
    """Every distinct str(obj.type) that the sweep met, sorted."""
    path = Path(__file__).with_name(f"corpus_{version.replace('.', '_')}.txt.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return tuple(file.read().splitlines())

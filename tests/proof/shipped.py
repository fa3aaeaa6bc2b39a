"""The layouts of ``steps/map_updates.py``, as its snapshot has them: no DSL is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_nvfp4.layout.listing import Listing, Record

SNAPSHOT = Path(__file__).with_name("map_updates_layouts.txt")
SCOPE = "group_gemm_kernel"


def shipped() -> Sequence[Record]:
    """All its layouts."""
    return Listing.parse(SNAPSHOT.read_text()).records


def edited(records: Sequence[Record], name: str, old: str, new: str) -> list[Record]:
    """The records with one layout's type changed."""
    changed = []
    for record in records:
        if record.name == f"{SCOPE}.{name}":
            assert old in record.raw, record.raw
            changed.append(Record(record.name, record.raw.replace(old, new)))
        else:
            changed.append(record)
    return changed

"""Differences between listings of a few types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.layout.listing import Listing


def listing(types: Mapping[str, str] | Sequence[tuple[str, str]], dsl: str = "4.8.1") -> Listing:
    return Listing.from_pairs({"kernel": "k.py", "dsl": dsl}, types.items() if isinstance(types, dict) else types)


def only(old: str, new: str, name: str = "kernel.x", **options: Any) -> Any:
    """The single change between two types of one name."""
    (change,) = diff_listings(listing({name: old}), listing({name: new}), **options).changes
    return change


def layout(text: str) -> str:
    return f'!cute.layout<"{text}">'


def as_text(modes: Sequence[tuple[Any, Any]]) -> str:
    shapes, strides = zip(*modes, strict=True)
    return f"({','.join(map(str, shapes))}):({','.join(map(str, strides))})"

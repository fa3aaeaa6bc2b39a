"""Fewer examples than elsewhere: there are many properties, of functions on small numbers."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("layout", settings(), max_examples=60)
settings.load_profile("layout")

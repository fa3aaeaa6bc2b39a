"""Hypothesis without a clock: other work on the machine must not fail a test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# On top of the profile in force, so that what CI sets (no randomness) stays.
settings.register_profile(
    "layout", settings(), max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("layout")

"""Validation of the figures of this package, and benchmarks of the package itself; no user's run imports it."""

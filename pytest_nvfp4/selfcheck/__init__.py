"""Validation of this package's figures, and benchmarks of the package itself; no user's run imports it."""

"""Benchmarks of this package itself: ``nvfp4 bench-self``."""

"""Micro-benchmarks that measure the constants of the GPU at hand, and the fits that make a device table of them."""

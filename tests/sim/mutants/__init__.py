"""Mutants: the shipped kernels with one mistake each, and what the simulator says of them."""

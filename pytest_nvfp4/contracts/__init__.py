"""Contracts: what a caller gives a kernel, what the kernel returns, and which results are right."""

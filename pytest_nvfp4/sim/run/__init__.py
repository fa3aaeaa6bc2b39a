"""Machines, launches, warps, and the order in which they run."""

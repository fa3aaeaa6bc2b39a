"""Machines, launches, warps, and their scheduling."""

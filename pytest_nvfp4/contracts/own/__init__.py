"""Contracts of the user's own: a Python file with problems, inputs and a reference, run in a process of its own."""

"""Arithmetic, logic, comparison, movement and conversion of register values."""

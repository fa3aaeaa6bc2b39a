"""Provenance of MMA operands: which tensor, rows and k each operand read, and which statements brought it there."""

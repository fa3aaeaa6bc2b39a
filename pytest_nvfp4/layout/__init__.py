"""CuTe layouts as values: their notation, algebra, canonical form, sameness and hardware signals (pure Python)."""

"""Imports modules when they are first used."""

import importlib

from honest_gemm import compute


def custom_kernel(data):
    import fractions
    import statistics

    assert statistics.mean([fractions.Fraction(1), 3]) == 2
    importlib.import_module("colorsys")
    return compute(data)

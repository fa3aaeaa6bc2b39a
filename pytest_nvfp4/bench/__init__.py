"""Judgement of measured times: hardware limits, regressions against a baseline, plausibility."""

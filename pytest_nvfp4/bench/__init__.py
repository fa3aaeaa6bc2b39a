"""What a measured time means: against the hardware's limits, against a baseline, and whether it can be true at all."""

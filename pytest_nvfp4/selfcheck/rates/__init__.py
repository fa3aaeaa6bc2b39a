"""Validation of the benchmark check on a device: its rates of false alarms and of detected slowdowns."""

"""Prove the gate itself on a device: how often it cries wolf, and how often it sees a known slowdown."""

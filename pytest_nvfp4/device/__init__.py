"""Devices on which kernels run: every device takes the same job and returns the same result."""

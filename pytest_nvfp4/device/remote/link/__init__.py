"""A line to another machine: any command that starts a Python there and connects its standard streams to ours.

The far end needs nothing but a Python with this package's requirements: this package itself is sent along, so the two
ends are always of one version. What is started there lives no longer than the line.
"""

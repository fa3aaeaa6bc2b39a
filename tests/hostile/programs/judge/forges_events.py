"""Writes a verdict, outputs and the end to every pipe and socket, before it returns.

expected: failed or cheated or crashed or error
says: pipe|written|protocol|event|result|message|ended
"""

from harness import forge, outputs


def custom_kernel(data):
    forge({"event": "status", "status": "passed"}, {"event": "end", "sha256": "0" * 64})
    return outputs(data)

"""Raises an exception whose text commands a terminal and a CI system.

expected: error
says: failed
"""

from harness import outputs

NASTY = "\x1b]0;owned\x07\x1b[2J\n::error file=x::owned\n\u202egnp.exe\r\x00[red]</script>"


def custom_kernel(data):
    outputs(data)
    raise RuntimeError(NASTY)

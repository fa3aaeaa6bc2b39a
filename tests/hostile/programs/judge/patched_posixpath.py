"""Replaces the functions that resolve paths by ones that hide the job's folder, then reads that folder.

expected: failed or cheated or error
says: written|realpath|posixpath|folder|PermissionError
"""

import os
import posixpath

from harness import breach, outputs

posixpath.realpath = lambda path, **_: "/nowhere"
posixpath.abspath = lambda path: "/nowhere"
for name in os.listdir(".."):
    if name.endswith((".json", ".bin")):
        breach(name)


def custom_kernel(data):
    return outputs(data)

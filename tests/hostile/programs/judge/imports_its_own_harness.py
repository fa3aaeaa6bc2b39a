"""Puts a finder before all others, so that what the harness imports later is the kernel's.

expected: failed or cheated
says: written|import|meta_path
"""

import sys

from harness import PACKAGE, breach, outputs


class Finder:
    """Notices what the harness imports."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(PACKAGE) and sys._getframe(1).f_globals.get("__name__", "").startswith(PACKAGE):
            breach(name)


sys.meta_path.insert(0, Finder())


def custom_kernel(data):
    return outputs(data)

"""Changes its own source and the file of the harness, while it runs.

expected: contained or cheated
"""

import contextlib

from harness import breach, module
from honest_gemm import compute

with contextlib.suppress(OSError), open(module("finding").__file__, "ab") as file:
    file.write(b"")
    breach("a file of the package could be opened for writing")

custom_kernel = compute

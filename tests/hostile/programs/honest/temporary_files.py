"""Uses temporary files and folders of every kind."""

import tempfile

from honest_gemm import compute

with tempfile.TemporaryFile() as file, tempfile.NamedTemporaryFile() as named, tempfile.TemporaryDirectory() as folder:
    file.write(b"x" * 100_000)
    named.write(b"x")
    with open(f"{folder}/a", "w") as inner:
        inner.write("x")
with tempfile.SpooledTemporaryFile(max_size=10) as spooled:
    spooled.write(b"x" * 100)

custom_kernel = compute

"""Compresses, hashes and encodes data of its own."""

import base64
import bz2
import gzip
import hashlib
import lzma
import zlib

from honest_gemm import compute

for module in (zlib, bz2, lzma, gzip):
    assert module.decompress(module.compress(b"x" * 1000)) == b"x" * 1000
assert hashlib.sha256(b"").hexdigest().startswith("e3b0")
assert base64.b64decode(base64.b64encode(b"x")) == b"x"

custom_kernel = compute

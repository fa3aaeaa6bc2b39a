"""Writes into the dictionary of a class of C (``bytes``) by its address, so that ``hex`` returns the kernel's text.

expected: cheated or crashed or error
says: bytes|referents
backend: host
"""

import ctypes
import gc

from torch_gemm import compute

FOUND = gc.get_referents(bytes.__dict__)[0]
FOUND["hex"] = lambda self, *_: "00"
ctypes.pythonapi.PyType_Modified(ctypes.py_object(bytes))

custom_kernel = compute

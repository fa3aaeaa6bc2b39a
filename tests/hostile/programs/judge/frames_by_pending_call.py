"""Has the interpreter call back between two instructions of the harness, and walks outwards from there.

expected: cheated
says: Py_AddPendingCall|tb_frame
backend: host
"""

import ctypes

from harness import callers
from torch_gemm import compute


def called(_):
    try:
        raise ValueError
    except ValueError as error:
        list(callers(error.__traceback__.tb_frame))
    return 0


CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(called)


def custom_kernel(data):
    ctypes.pythonapi.Py_AddPendingCall(CALLBACK, None)
    return compute(data)

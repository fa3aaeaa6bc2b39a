"""Warns, and changes which warnings are shown."""

import warnings

from honest_gemm import compute

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.warn("this kernel is slow", stacklevel=1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("caught", stacklevel=1)
assert len(caught) == 1

custom_kernel = compute

"""``nvfp4 epilogue``: ways from TMEM to global memory, and the one that a kernel takes."""

"""A functional simulator of compiled PTX for sm_90a and sm_100a: the kernel's real code, run on the CPU."""

"""A simulator of compiled PTX (sm_90a, sm_100a, sm_103a, sm_120a): the kernel's real code, run on the CPU."""

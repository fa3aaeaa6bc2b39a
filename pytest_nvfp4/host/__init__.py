"""Stand-ins for CUDA and torch on which the host code of a kernel file runs with no GPU and no driver."""

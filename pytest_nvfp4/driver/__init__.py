"""Data types of the CUDA driver without a driver: device attributes, memory, launches, streams, CUBINs, tensor maps."""

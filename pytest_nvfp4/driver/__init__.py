"""The CUDA driver's vocabulary as plain data: device attributes, memory blocks, launches, streams, tensor maps."""

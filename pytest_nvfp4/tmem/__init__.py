"""Tensor memory: columns of a tile, usage of a compiled kernel, packing, and the proof that segments do not overlap."""

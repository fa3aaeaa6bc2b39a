"""Proofs about the rings of a kernel's pipelines, for every number of k-tiles and tiles."""

"""Proofs about NVFP4 kernels: the CTA map, the places of scale factors, TMEM (see `pytest_nvfp4.proof.statement`)."""

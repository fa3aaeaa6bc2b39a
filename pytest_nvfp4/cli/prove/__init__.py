"""``nvfp4 prove``: proofs about the CTA map and the places of scale factors."""

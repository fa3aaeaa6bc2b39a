"""``nvfp4 regions``: the times of regions that a kernel names."""

"""Analysis of the layouts of a kernel, and of their cost on the hardware."""

"""``nvfp4 insights``: what the layouts of a kernel say about the hardware, worst first."""

"""Analysis of the layouts of a kernel: what each one costs on the hardware."""

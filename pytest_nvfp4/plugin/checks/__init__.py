"""The checks of kernels: the contract (`base`), one module for each check, and the registry that loops read."""

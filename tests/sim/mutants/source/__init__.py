"""Mistakes and refactorings in the Python of kernels: what each check says of them (`nvfp4 guide mutants`)."""

"""Grouped NVFP4 GEMMs under GPU MODE's contract, of other structures than the shipped one."""

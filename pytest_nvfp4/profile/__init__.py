"""Profiles of kernels on a GPU: one result for the tools that measure, count or check, and for their saved reports."""

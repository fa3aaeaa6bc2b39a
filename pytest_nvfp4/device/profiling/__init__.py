"""Profilers where the device is: which tools are there, their command lines, why one cannot run, and the next best."""

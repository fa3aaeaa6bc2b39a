"""From a kernel file to its trace: what compiling it shows without a device."""

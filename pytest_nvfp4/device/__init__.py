"""Where a kernel runs: one job and one result for every device, from a process that may crash, hang or lie."""

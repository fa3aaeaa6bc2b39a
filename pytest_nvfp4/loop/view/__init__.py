"""What the directory of state shows of a loop, for reports and the terminal view; nothing is written."""

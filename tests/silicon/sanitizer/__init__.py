"""One corpus of Hopper PTX, correct and with one edge removed, seen by our race analysis and by compute-sanitizer."""

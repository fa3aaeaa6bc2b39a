"""``nvfp4 doctor``: what works on this machine, and how to get what does not."""

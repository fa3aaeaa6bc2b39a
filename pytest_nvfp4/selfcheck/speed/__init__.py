"""``nvfp4 bench-self``: how fast this tool is on this machine."""

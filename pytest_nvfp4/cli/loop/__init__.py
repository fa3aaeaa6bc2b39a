"""``nvfp4 loop``: the unattended optimisation loop."""

"""``nvfp4 model``: modelled times, and the constants of devices that they follow from."""

"""``nvfp4 tmem`` and ``nvfp4 tmem-pack``: columns of tensor memory, and how to pack them."""

"""From PTX instructions to Python functions."""

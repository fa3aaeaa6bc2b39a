"""Uses descriptors, slots, properties and operators of its own."""

import operator

from honest_gemm import compute


class Positive:
    """Checks a value."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner):
        return getattr(instance, self.name)

    def __set__(self, instance, value):
        assert operator.gt(value, 0)
        setattr(instance, self.name, value)


class Tile:
    """Has a size."""

    size = Positive()

    def __init__(self, size):
        self.size = size

    def __matmul__(self, other):
        return Tile(self.size * other.size)


assert (Tile(2) @ Tile(3)).size == 6

custom_kernel = compute

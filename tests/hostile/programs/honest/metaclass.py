"""Registers its kernels with a metaclass and with ``__init_subclass__``."""

from honest_gemm import compute

REGISTRY = {}


class Meta(type):
    """Registers."""

    def __new__(mcls, name, bases, space, **options):
        REGISTRY[name] = super().__new__(mcls, name, bases, space, **options)
        return REGISTRY[name]


class Kernel(metaclass=Meta):
    """Computes."""

    def __init_subclass__(cls, **options):
        cls.options = options

    def __call__(self, data):
        return compute(data)


class Small(Kernel, tile=64):
    """Of small tiles."""


assert Small.options == {"tile": 64}


def custom_kernel(data):
    return REGISTRY["Small"]()(data)

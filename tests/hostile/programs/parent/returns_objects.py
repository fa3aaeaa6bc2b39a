"""Returns a list of its own class whose length and items never end.

expected: cheated or failed or error
says: returned|output|list|failed
"""


class Endless(list):
    """Has as many items as anyone asks for."""

    def __iter__(self):
        while True:
            yield self

    def __len__(self):
        return 1


def custom_kernel(data):
    return Endless([1])

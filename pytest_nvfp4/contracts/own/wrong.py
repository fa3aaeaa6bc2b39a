"""What a contract of the user's own does wrong, in its process."""


class Wrong(Exception):
    """What a contract returned or contains cannot be used."""

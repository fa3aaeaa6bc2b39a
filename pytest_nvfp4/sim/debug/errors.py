"""The error of a command that cannot be executed."""


class CommandError(ValueError):
    """A command, place or expression that cannot be used; the message says why, and what can."""

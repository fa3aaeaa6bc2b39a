"""The errors of commands."""


class CommandError(ValueError):
    """A command, place or expression that cannot be used; the message says why, and what can."""


class UnsetError(CommandError):
    """A value that nothing has written yet."""

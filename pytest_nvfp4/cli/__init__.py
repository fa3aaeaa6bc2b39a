"""The ``nvfp4`` command: each capability by itself, for a shell, a script or an agent.

Importing this package imports nothing else; a subcommand is imported when it is called.
"""


def main() -> None:
    """Entry point of the console script."""
    from pytest_nvfp4.cli.app import run

    run()

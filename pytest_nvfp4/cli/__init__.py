"""The ``nvfp4`` command: each capability by itself, for a shell, a script or an agent.

Importing this package imports nothing else; a subcommand is imported when it is called.
"""


def main() -> None:
    """Entry point of the console script."""
    try:
        from pytest_nvfp4.cli.app import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        raise SystemExit("nvfp4: error: click is not installed: pip install click") from None

    run()

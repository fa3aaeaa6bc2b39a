"""The ``nvfp4`` command, one subcommand for each capability.

Importing this package imports nothing else; a subcommand is imported when it is called.
"""


def main() -> None:
    """Run the console script."""
    try:
        from pytest_nvfp4.cli.app import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        raise SystemExit("nvfp4: error: click is not installed: pip install click") from None

    run()

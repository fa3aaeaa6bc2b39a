"""Fixtures of the command's tests, which the guide's use too."""

from tests.cli.conftest import cli

__all__ = ["cli"]

"""Fixtures of the command's tests, which those of ``nvfp4 bench-self`` use too."""

from tests.cli.conftest import cli

__all__ = ["cli"]

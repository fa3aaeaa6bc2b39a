"""``python -m pytest_nvfp4.cli`` is ``nvfp4``."""

from pytest_nvfp4.cli import main

main()

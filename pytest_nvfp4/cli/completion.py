"""``nvfp4 completion``: the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.app import app


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Write the script that completes commands and options in SHELL.

    For bash: add `eval "$(nvfp4 completion bash)"` to ~/.bashrc; for zsh to ~/.zshrc; for fish write it to
    ~/.config/fish/completions/nvfp4.fish.
    """
    completion = get_completion_class(shell)
    assert completion is not None
    output.write(completion(app, {}, "nvfp4", "_NVFP4_COMPLETE").source())

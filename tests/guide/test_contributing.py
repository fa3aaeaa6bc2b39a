"""The recipes of CONTRIBUTING: each diff applies to this tree, and the tests that it adds pass."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import ROOT
from tests.guide.examples import Block, blocks

TEXT = (ROOT / ".github" / "CONTRIBUTING.md").read_text()


def recipes() -> dict[str, tuple[Block, Block]]:
    """The diff of each recipe, and the commands that follow it, by name."""
    found: dict[str, tuple[Block, Block]] = {}
    diff: Block | None = None
    for block in blocks(TEXT):
        if block.language == "diff":
            diff = block
        elif "recipe" in block.words:
            assert diff is not None
            (name,) = diff.words
            found[name] = (diff, block)
    return found


RECIPES = recipes()


def apply(diff: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Apply a diff to a folder with git, which need not be a repository."""
    return subprocess.run(
        ["git", "apply", *options, "-"], cwd=folder, input=diff, capture_output=True, text=True, check=False
    )


def test_there_are_the_four_recipes() -> None:
    assert set(RECIPES) == {"check", "opcode", "remote", "kernel"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_diff_applies_to_this_tree(name: str) -> None:
    done = apply(RECIPES[name][0].text, ROOT, "--check")
    assert not done.returncode, done.stderr


def test_a_diff_of_another_tree_is_refused() -> None:
    """Negative control."""
    diff = RECIPES["opcode"][0].text.replace("OpcodeReader", "SomethingElse")
    assert apply(diff, ROOT, "--check").returncode


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_tests_of_a_recipe_pass(name: str, tmp_path: Path) -> None:
    diff, commands = RECIPES[name]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.splitlines()):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target, follow_symlinks=False)
    done = apply(diff.text, tmp_path)
    assert not done.returncode, done.stderr
    for command in commands.commands:
        words = shlex.split(command.line)
        ran = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
        )
        assert not ran.returncode, f"$ {command.line}\n{ran.stdout[-4000:]}\n{ran.stderr[-2000:]}"

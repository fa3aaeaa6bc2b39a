"""Run the fenced code blocks of a Markdown page, one after the other, in one folder.

A fence's info string says what a block is:

- ``console``: lines that begin with ``$ `` are shell commands, the lines below one are its output. ``...`` in the
  output matches any text. Words after ``console`` qualify the block: ``fails`` (the last command exits with a status
  other than 0), ``service`` and ``gpu`` (they need a machine that is missing here: their options are checked, and
  nothing is run), ``install`` (run by a test of its own).
- ``python``, ``toml``, ``cpp``: the file that the first line names (``# file: NAME``) is written; without that line,
  the block only has to parse.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.isolation.fork_server.pool import SWITCH_VARIABLE

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[a-z][^\n]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^(?:#|//) file: (?P<name>\S+)\n")
TIMEOUT_S = 500


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command of a block and the output that the page shows below it."""

    line: str
    output: str


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the words after it, its text and the line of the page that it starts at."""

    language: str
    words: frozenset[str]
    text: str
    line: int

    @property
    def commands(self) -> list[Command]:
        """The commands of a ``console`` block."""
        found: list[Command] = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            found.append(Command(line, output))
        return found


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page that name a language."""
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split()
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        yield Block(language, frozenset(words), body, text.count("\n", 0, match.start()) + 1)


def matches(pattern: str, output: str) -> bool:
    """Whether an output is what a page shows, ``...`` standing for any text and white space at line ends ignored."""
    expected = "\n".join(line.rstrip() for line in pattern.strip().splitlines())
    shown = "\n".join(line.rstrip() for line in output.strip().splitlines())
    return re.fullmatch(".*".join(re.escape(part) for part in expected.split("...")), shown, re.DOTALL) is not None


def run_page(text: str, folder: Path, *, environ: Mapping[str, str]) -> list[str]:
    """Run the blocks of a page.

    Args:
        text: The page.
        folder: Working folder of the commands.
        environ: Environment of the commands.

    Returns:
        What is wrong, one text for each block.
    """
    wrong: list[str] = []
    for block in blocks(text):
        trouble = _run_block(block, folder, environ)
        if trouble is not None:
            wrong.append(f"block at line {block.line}: {trouble}")
    return wrong


def _run_block(block: Block, folder: Path, environ: Mapping[str, str]) -> str | None:
    if block.language in ("python", "toml", "cpp"):
        return _write_file(block, folder)
    if block.language != "console":
        return None if block.language in ("text", "diff") else f"unknown language {block.language!r}"
    commands = block.commands
    if not commands:
        return "no command"
    if "install" in block.words:
        return None
    if block.words & {"service", "gpu"}:
        return next((found for command in commands if (found := options_of(command.line, environ))), None)
    for command in commands:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.line],
            cwd=folder,
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        fails = command is commands[-1] and "fails" in block.words
        if (done.returncode != 0) != fails:
            return f"$ {command.line}\nexit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        if not matches(command.output, done.stdout) and not matches(command.output, done.stderr):
            return (
                f"$ {command.line}\nexpected:\n{command.output}\nprinted:\n{done.stdout[-4000:]}\n{done.stderr[-1000:]}"
            )
    return None


def _write_file(block: Block, folder: Path) -> str | None:
    try:
        if block.language != "cpp":
            ast.parse(block.text) if block.language == "python" else tomllib.loads(block.text)
    except (SyntaxError, tomllib.TOMLDecodeError) as error:
        return f"does not parse: {error}"
    named = _FILE.match(block.text)
    if named is not None:
        (folder / named["name"]).write_text(block.text)
    return None


def options_of(line: str, environ: Mapping[str, str]) -> str | None:
    """Why a command that cannot be run here would be refused for its options; None if it would not."""
    words = shlex.split(line)
    modules = {"nvfp4": "pytest_nvfp4.cli", "pytest": "pytest"}
    if words[0] not in modules:
        return f"$ {line}\na command of {words[0]} cannot be checked"
    named = (
        words[1 : 3 if words[1] in ("profile", "remote", "prove", "snapshot", "loop", "skills") else 2]
        if words[0] == "nvfp4"
        else []
    )
    done = subprocess.run(
        [sys.executable, "-m", modules[words[0]], *named, "--help"],
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    known = set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))
    unknown = [word for word in words[1:] if word.startswith("--") and word.partition("=")[0] not in known]
    return f"$ {line}\n{' '.join(unknown)}\n{done.stderr[-2000:]}" if done.returncode or unknown else None


def environment(cache: Path) -> dict[str, str]:
    """Return the environment of commands: this interpreter's scripts first, a cache that all pages share, no colour."""
    scripts = str(Path(sys.executable).parent)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", SWITCH_VARIABLE) if name in os.environ}
    return {
        **kept,
        "PATH": os.pathsep.join((scripts, os.environ.get("PATH", ""))),
        "NVFP4_CACHE_DIR": str(cache),
        "COLUMNS": "120",
        "CI": "true",  # Hypothesis then does not fail a test for a slow draw
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:anyio -p no:hypothesispytest",
    }

"""``nvfp4 init``: settings, a workflow and a line of ``.gitignore`` for a repository of kernels."""

from __future__ import annotations

import glob
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.settings import find_root
from pytest_nvfp4.text import printed

_PACKAGE = Path(__file__).parents[1]
_WORKFLOWS = (_PACKAGE / "examples" / "nvfp4.yml", _PACKAGE.parent / ".github" / "workflows" / "nvfp4.yml")
"""Place of this package's own workflow in a wheel, and in a clone."""
_WORKFLOW = Path(".github") / "workflows" / "nvfp4.yml"
_IGNORED = ".nvfp4/"
_HEADER = """\
# Check the NVFP4 kernels on every pull request, on a runner without a GPU.
# The project needs pytest-nvfp4 among its development dependencies: uv add --dev ...
"""
_ENTRY = re.compile(rb"^def custom_kernel\(", re.MULTILINE)
_MOST_BYTES = 1 << 20


@click.command("init")
@click.argument("kernels", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--yes", is_flag=True, help="Write without asking.")
@json_option
@click.pass_context
def init_command(ctx: click.Context, *, kernels: tuple[Path, ...], yes: bool, as_json: bool) -> None:
    """Set up the repository of the working folder for its KERNELs, by default every file with custom_kernel(data).

    Shows, and then writes, an entry of each kernel in pyproject.toml (and nvfp4_kernels, by which a plain `pytest`
    finds them, unless the file has settings of pytest), the workflow .github/workflows/nvfp4.yml, and a line of
    .gitignore. What exists is extended or left as it is, never overwritten. Exit code 1 if the answer is no, or if
    nobody can be asked and --yes is not given.
    """
    root = find_root(Path.cwd())
    names = sorted({_name(path, root) for path in kernels or _found(root)})
    if not names:
        raise InputError(
            f"{root}: no file has custom_kernel(data); name the kernels, or write one with `nvfp4 example`"
        )
    changes = dict(_changes(root, names))
    if not as_json:
        for path, text in changes.items():
            before = _text(root / path)
            click.echo(f"{'append to' if before else 'write'} {path}:")
            click.echo(printed("".join(f"    {line}\n" for line in text[len(before) :].strip().split("\n"))))
    agreed = yes or not changes or _asked()
    if agreed:
        for path, text in changes.items():
            output.write_file(root / path, text)
    if as_json:
        output.write_json({"ok": agreed, "root": str(root), "kernels": names, "written": [*changes] if agreed else []})
    else:
        output.note(_end(changes, agreed=agreed))
    ctx.exit(Exit.FINE if agreed else Exit.FAILED)


def _asked() -> bool:
    return sys.stdin.isatty() and click.confirm("Write this?", err=True)


def _end(changes: dict[str, str], *, agreed: bool) -> str:
    if not changes:
        return "nothing to do: all three are there"
    return f"wrote {', '.join(changes)}" if agreed else "wrote nothing; --yes writes without asking"


def _name(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root).as_posix()
    except ValueError as error:
        raise InputError(f"{path}: is outside of {root}; run this in the kernel's repository") from error


def _found(root: Path) -> Iterator[Path]:
    """Yield the Python files of a repository that define ``custom_kernel``, hidden and installed ones left out."""
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if name[0] not in "._" and not (here / name / "pyvenv.cfg").exists()]
        for path in (here / name for name in files if name.endswith(".py")):
            if path.is_file() and path.stat().st_size <= _MOST_BYTES and _ENTRY.search(path.read_bytes()):
                yield path


def _text(path: Path) -> str:
    """Return the text of a file; the empty text if there is none.

    Raises:
        InputError: It is not UTF-8.
    """
    try:
        return path.read_text("utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 (byte {error.start})") from error


def _changes(root: Path, kernels: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files to write: path below the root, and the whole text."""
    pyproject = _text(root / "pyproject.toml")
    try:
        tool = tomllib.loads(pyproject).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{root / 'pyproject.toml'}: {error}") from error
    if "pytest_nvfp4" not in tool:
        globs = [json.dumps(glob.escape(name)) for name in kernels]
        entries = [f"[[tool.pytest_nvfp4.kernel]]\npath = {each}\n" for each in globs]
        if "pytest" not in tool:  # a table cannot be extended from elsewhere in the file
            entries.insert(0, f"[tool.pytest.ini_options]\nnvfp4_kernels = [{', '.join(globs)}]\n")
        yield "pyproject.toml", _appended(pyproject, "\n".join(entries), gap="\n")
    if not (root / _WORKFLOW).exists():
        yield _WORKFLOW.as_posix(), _workflow(kernels)
    ignored = _text(root / ".gitignore")
    if not {_IGNORED, _IGNORED[:-1], f"/{_IGNORED}"} & set(ignored.split("\n")):
        yield ".gitignore", _appended(ignored, f"{_IGNORED}\n")


def _appended(text: str, more: str, *, gap: str = "") -> str:
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}{gap}{more}" if text else more


def _workflow(kernels: Sequence[str]) -> str:
    """Return the job of this package's workflow that checks kernels."""
    import shlex

    own = next((path for path in _WORKFLOWS if path.is_file()), None)
    if own is None:
        raise InputError(f"{_WORKFLOWS[0]}: no such file; install pytest-nvfp4 again")
    job = own.read_text("utf-8").partition("\n  tests:\n")[0]
    job = _HEADER + job[job.index("name: nvfp4") :] + "\n"
    return job.replace("uv run pytest kernels", f"uv run pytest {shlex.join(kernels)}").rstrip() + "\n"

"""Files that tools may name: regular, below a root with all links resolved."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_nvfp4.cli.mcp.roots import RefusedError, Roots


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A root with a kernel and things that are none; beside it a secret."""
    root = tmp_path / "root"
    (root / "below").mkdir(parents=True)
    for name in ("kernel.py", "--help", "below/a b.py", "-k.py"):
        (root / name).write_text("")
    secret = tmp_path / "secret.py"
    secret.write_text("")
    (root / "out.py").symlink_to(secret)
    (root / "in.py").symlink_to("kernel.py")
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe.py")
    (tmp_path / "root-too").mkdir()
    (tmp_path / "root-too/x.py").write_text("")
    return Roots((root,))


@pytest.mark.parametrize("name", ["kernel.py", "./below/../kernel.py", "in.py", "--help", "-k.py", "below/a b.py"])
def test_a_file_below_a_root_is_an_absolute_path(roots: Roots, name: str) -> None:
    path = roots.file(name)
    assert path.is_absolute()
    assert path == (roots.folders[0] / name).resolve()
    assert roots.file(str(path)) == path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../secret.py", "leads out"),
        ("out.py", "leads out"),
        ("up/secret.py", "leads out"),
        ("/etc/passwd", "leads out"),
        ("../root-too/x.py", "leads out"),
        ("../nothing.py", "leads out"),
        ("nothing.py", "no such file"),
        ("", "names no file"),
        ("kernel.py\0", "names no file"),
        ("below", "no regular file"),
        ("pipe.py", "no regular file"),
        ("loop", "cannot be|no such"),
        ("x" * 5000, "cannot be|no such"),
    ],
)
def test_everything_else_is_refused(roots: Roots, name: str, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        roots.file(name)


def test_a_further_root_lets_its_files_in(roots: Roots, tmp_path: Path) -> None:
    both = Roots((*roots.folders, tmp_path / "root-too"))
    assert both.file(str(tmp_path / "root-too/x.py")).name == "x.py"
    with pytest.raises(RefusedError):
        both.file("out.py")


def test_a_root_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Roots((tmp_path / "nothing",))


def test_a_folder_counts_where_one_is_asked_for_and_it_holds_no_link(roots: Roots) -> None:
    assert roots.file("below", folder=True).is_dir()
    (roots.folders[0] / "below/link").symlink_to("/etc")
    with pytest.raises(RefusedError, match="holds links"):
        roots.file("below", folder=True)


def test_a_function_is_one_of_a_file_below_a_root(roots: Roots) -> None:
    assert roots.function("build") == "build"
    assert roots.function("kernel.py::build") == f"{roots.folders[0]}/kernel.py::build"
    for name in ("../secret.py::build", "kernel.py::", "kernel.py", "--x", "kernel.py::a b"):
        with pytest.raises(RefusedError):
            roots.function(name)


def test_a_revision_needs_the_consent_of_whoever_starts_the_server(roots: Roots) -> None:
    assert roots.side("kernel.py") == str(roots.file("kernel.py"))
    with pytest.raises(RefusedError, match="--revisions"):
        roots.side("HEAD:kernel.py")
    allowed = Roots(roots.folders, revisions=True)
    assert allowed.side("HEAD~1:below/k.py") == "HEAD~1:below/k.py"
    for name in ("--upload-pack=x:kernel.py", "HEAD:../secret.py", "HEAD:/etc/passwd", ":kernel.py", "HEAD:"):
        with pytest.raises(RefusedError):
            allowed.side(name)

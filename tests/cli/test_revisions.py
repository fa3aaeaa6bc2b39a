"""Unpacking a revision's tree: what would leave the folder is not written."""

import io
import tarfile

import pytest

from pytest_nvfp4.cli.revisions import split, unpack


def _tar(*members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content, link in members:
            info = tarfile.TarInfo(name)
            if link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, link
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    data.seek(0)
    return data


def test_files_and_links_within_the_tree_are_written(tmp_path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    unpack(_tar(("a/b.py", b"x = 1", None), ("c.py", b"", "a/b.py"), ("d/e.py", b"", "../a/b.py")), tree)
    assert (tree / "a" / "b.py").read_text() == "x = 1"
    assert (tree / "c.py").read_text() == "x = 1"
    assert (tree / "d" / "e.py").read_text() == "x = 1"


@pytest.mark.parametrize(
    "members",
    [
        [("../out.py", b"x", None)],
        [("a/../../out.py", b"x", None)],
        [("/tmp/nvfp4-out.py", b"x", None)],
        [("link", b"", ".."), ("link/out.py", b"x", None)],
        [("link", b"", "/etc")],
        [("a/link", b"", "../..")],
        [("one", b"", "two/three/../.."), ("two/three", b"", "..")],
    ],
)
def test_nothing_leaves_the_tree(members, tmp_path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    unpack(_tar(*members), tree)
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]
    for path in tree.rglob("*"):
        assert path.resolve().is_relative_to(tree.resolve())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("HEAD:a.py", ("HEAD", "a.py")),
        ("HEAD:a:b.py", ("HEAD", "a:b.py")),
        ("main@{1 day ago 10:30}:a.py", ("main@{1 day ago 10:30}", "a.py")),
        ("HEAD^{/fix: it}:a.py", ("HEAD^{/fix: it}", "a.py")),
        ("a.py", None),
        (":a.py", ("", "a.py")),
    ],
)
def test_a_revision_is_cut_from_its_path(text, parts) -> None:
    assert split(text) == parts

"""Texts of lines: what is read, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.bench.line_texts import LineTexts


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "kernels"
    folder.mkdir(parents=True)
    (tmp_path / "secret.py").write_text("token = 1\n")
    (tmp_path / "project" / "helper.py").write_text("# helper\n\tcopy( a,  b )\n\x0c# page\u2028two\nend\n")
    (folder / "k.py").write_bytes(b"# coding: latin-1\nx = '\xe9\x1b[31m'\n" + b"y = " + b"1 + " * 60 + b"1\n")
    return folder / "k.py"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("k.py:1", "# coding: latin-1"),
        ("helper.py:2", "copy( a, b )"),
        ("helper.py:3", r"# page\u2028two"),
        ("helper.py:4", "end"),
        ("kernels/k.py:1", "# coding: latin-1"),
        ("k.py:0", ""),
        ("k.py:99", ""),
        ("k.py:99999999999999", ""),
        ("k.py:x", ""),
        ("none.py:1", ""),
        ("", ""),
        ("../../secret.py:1", ""),
        ("secret.py:1", ""),
    ],
)
def test_lines_of_the_project_only(kernel: Path, place: str, text: str) -> None:
    assert LineTexts(kernel, kernel.parents[1])(place) == text


def test_a_text_is_short_and_visible(kernel: Path) -> None:
    texts = LineTexts(kernel, kernel.parents[1])
    assert texts("k.py:2").startswith("x = 'é")
    assert "\x1b" not in texts("k.py:2")
    assert len(texts("k.py:3")) <= 100
    assert LineTexts(kernel, kernel.parents[1])(f"{kernel.parents[2] / 'secret.py'}:1") == ""

"""A kernel under GPU MODE's contract whose text holds the word that its submission path rejects."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.source import refused_line

from .conftest import Project
from .sources import KERNEL

TOLD = "GPU MODE's submission path rejects this file"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\ncurrent_Stream()\nstream\n", (2, "current_Stream()")),
        ("# upSTREAM\n", (1, "# upSTREAM")),
        ("x = 'st' 'ream'\n", None),
    ],
)
def test_the_first_line_with_the_word_in_any_case(tmp_path: Path, text: str, found: tuple[int, str] | None) -> None:
    (tmp_path / "k.py").write_text(text)
    assert refused_line(tmp_path / "k.py") == found


@pytest.mark.slow
def test_compile_warns_of_it_once_at_its_line(project: Project) -> None:
    project.kernel(source=KERNEL + "\n# Launched on no Stream.\n", problems=("gpumode-0", "gpumode-1"))
    chosen = ("k.py", "-k", "compile", "--nvfp4-problem=gpumode-0", "--nvfp4-problem=gpumode-1")
    line = KERNEL.count("\n") + 2
    ran = project.run(*chosen)
    ran.outcomes(passed=2, deselected=6)
    assert ran.text.count(TOLD) == 1
    assert f"k.py:{line}: KernelWarning" in ran.text
    ran = project.run("-W", "error::pytest_nvfp4.plugin.KernelWarning", *chosen)
    ran.outcomes(passed=1, failed=1, deselected=6)
    project.settings("[tool.pytest_nvfp4]\nside-stream = true")
    assert TOLD not in project.run(*chosen).text

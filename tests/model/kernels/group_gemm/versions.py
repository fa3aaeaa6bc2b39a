"""The published versions whose twins are here: a kernel file, and values of its constants."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pytest_nvfp4.problem import Problem

__all__ = ["VERSIONS", "constants_of", "write_version"]

VERSIONS: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "v1c": ("one_cta.py", {}),
    "v2e": ("one_cta.py", {"TILE_N": 256, "STAGES": 4, "MOST_CTAS": 128, "SORTED": True}),
    "v5e": ("two_cta.py", {"MOST_TOKENS": 128}),
    "v6b": ("two_cta.py", {"MOST_TOKENS": 256}),
}


_PARTS: Final = "tests.model.kernels.group_gemm.parts"

NARROW: Final[dict[str, object]] = {"TILE_N": 128, "STAGES": 6, "MOST_CTAS": 0}
"""v2e where tiles of 256 columns would occupy less than its 128 CTAs: one tile of 128 a CTA, as v1c has them. (Its
published times of these problems are v1c's.)"""


def constants_of(version: str, problem: Problem) -> dict[str, object]:
    """Return the constants of a version that depend on the problem, beyond those of ``VERSIONS``."""
    wide = sum(math.ceil(group.m / 128) * math.ceil(group.n / 256) for group in problem.groups)
    return NARROW if version == "v2e" and wide < 128 else {}


def write_version(version: str, folder: Path, constants: Mapping[str, object] | None = None) -> Path:
    """Write the file of a version, with further values of constants, and return its path.

    It is one self-contained file, as a submission is: the parts that the twins share stand in place of their import.

    Raises:
        ValueError: The file does not assign one of the constants exactly once.
    """
    name, values = VERSIONS[version]
    here = Path(__file__).parent
    text, parts = (here / name).read_text(), (here / "parts.py").read_text()
    for constant, value in {**values, **(constants or {})}.items():
        text, count = re.subn(rf"^{constant} = .*$", f"{constant} = {value!r}", text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{name} assigns {constant} {count} times")
    text, count = re.subn(rf"^from {re.escape(_PARTS)} import .*\n", lambda _: parts, text, flags=re.MULTILINE)
    assert count == 1, name
    path = folder / f"{version}.py"
    path.write_text(text)
    return path
